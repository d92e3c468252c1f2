import { Option, type Command } from 'commander'
import {
  addNamedOptions,
  clientOf,
  namespaceOf,
  outputOf,
  serviceName,
  targetOf,
  type NamedFlags,
} from './names.js'
import { answersOf, findProxies, type Asked } from './proxies.js'
import { byTime, FlowReader, type RemoteFlow, type RemoteFlows } from './flow-reader.js'
import { flowsQuery, noteLeftOut, noteNone } from '../flow-question.js'
import { flowHead, flowText } from '../../observe/flows/text.js'
import { Kubectl } from './kubectl.js'
import { printable } from '../../state/names.js'
import { printedOfMany } from '../shared-options.js'
import { showsColours, stopSignal, watch } from '../process.js'
import { verdicts, type FlowVerdict } from '../../observe/flows/line.js'

interface FlowsFlags extends NamedFlags {
  readonly from?: string
  readonly verdict?: FlowVerdict
  readonly watch?: boolean
  readonly limit: string
}

const usage = `
The proxies must run with --flows. Each reports the connections that its own node translated.
A line is printed for a connection when it is opened, and one at its end.`

/** Adds `kubectl svcproxy flows`: the newest connections of one node or of all. */
export function addFlowsCommand(program: Command): void {
  const command = program
    .command('flows')
    .description('show connections to Services: their clients, endpoints and results')
    .argument('[service]', 'only those to svc/NAME[:PORT] or NAME[:PORT]')
    .option('--from <client>', 'only those from pod/NAME, an address or a CIDR')
    .addOption(new Option('--verdict <verdict>', 'only those with this verdict').choices(verdicts))
    .option('-w, --watch', 'go on until it is stopped')
    .addOption(new Option('--follow', 'the same as --watch').implies({ watch: true }))
    .option('--limit <n>', 'begin with this number of the newest lines of each node', '100')
  addNamedOptions(command, 'all-namespaces').addHelpText('after', usage).action(flows)
}

/** Slower than on the node: each question goes through the API server. */
const followEveryMs = 2_000

async function flows(service: string | undefined, flags: FlowsFlags): Promise<void> {
  const kubectl = new Kubectl(flags)
  const namespace = await namespaceOf(kubectl, flags)
  const { reader, node } = await question(kubectl, service, namespace, flags)
  const on = flags.node ?? node
  let print: ReturnType<typeof printer> | undefined
  const isOurs = ({ service: name }: RemoteFlow) =>
    service !== undefined || namespace === undefined || name.startsWith(`${namespace}/`)
  const show = (asked: readonly Asked<RemoteFlows>[], isFirst: boolean) => {
    const answers = answersOf(asked)
    const flows = answers.flatMap(({ answer }) => answer.flows.filter(isOurs))
    const leftOut = answers.reduce((sum, { answer }) => sum + answer.leftOut, 0)
    const isText = flags.output === undefined || flags.output === 'wide'
    const isEmpty = isFirst && flows.length + leftOut === 0
    if (isText && isEmpty && flags.limit !== '0') noteNone({ service })
    print ??= printer(flags)
    for (const flow of flows.sort(byTime)) print(flow)
    noteLeftOut(leftOut)
  }
  // The proxies are looked up each time, because another pod may have replaced one.
  const ask = async () => reader.read(await findProxies(kubectl, flags, on))
  await watch(flags.watch === true ? followEveryMs : undefined, stopSignal(), ask, show)
}

async function question(
  kubectl: Kubectl,
  service: string | undefined,
  namespace: string | undefined,
  { from, verdict, limit }: FlowsFlags,
): Promise<{ readonly reader: FlowReader; readonly node: string | undefined }> {
  const client = from === undefined ? undefined : await clientOf(kubectl, from, namespace)
  const target = service === undefined ? undefined : targetOf(service, namespace)
  const query = flowsQuery({ service: target, from: client?.addresses.join(','), verdict, limit })
  return { reader: new FlowReader(query), node: client?.node }
}

function printer(flags: FlowsFlags): (flow: RemoteFlow) => void {
  const isWide = flags.output === 'wide'
  if (flags.output === 'name') return namePrinter()
  const nodeOf = (text: string, rest: string) => (isWide ? `${text.padEnd(20)}  ${rest}` : rest)
  if (flags.output === undefined || isWide)
    process.stdout.write(`${nodeOf('NODE', flowHead(isWide))}\n`)
  const look = { isWide, isColoured: showsColours(process.stdout) }
  return (flow) => {
    const text = `${nodeOf(printable(flow.node), flowText(flow, look))}\n`
    process.stdout.write(printedOfMany(outputOf(flags), { data: flow, text }))
  }
}

/** Prints each Service once. */
function namePrinter(): (flow: RemoteFlow) => void {
  const printed = new Set<string>()
  return ({ service }) => {
    const name = serviceName(service)
    if (printed.has(name)) return
    printed.add(name)
    process.stdout.write(`${printable(name)}\n`)
  }
}
