import { Option, type Command } from 'commander'
import { ConfigError } from '../errors.js'
import { addOutputOptions, printedOfMany, type OutputFlags } from './shared-options.js'
import { flowsQuery, noteLeftOut, noteNone } from './flow-question.js'
import { daemonOption, get } from './seen-node.js'
import { flowHead, flowText, howToFollow } from '../observe/flows/text.js'
import { showsColours, stopSignal, watch } from './process.js'
import { flowsAnswerIn, FlowsFollower, type FlowsAnswer } from '../observe/flows/answer.js'
import { verdicts, type FlowVerdict } from '../observe/flows/line.js'

interface FlowsFlags extends OutputFlags {
  readonly daemon: string
  readonly from?: string
  readonly verdict?: FlowVerdict
  readonly follow?: boolean
  readonly limit: string
}

const usage = `
The proxy must run with --flows. It keeps the newest 4,096 lines, at most 200 for each second, and says
how many it has left out. The numbers of kube-proxy top count all connections.
A connection has a line when it is opened and one at its end, with its duration and bytes. The kernel
keeps a closed TCP connection for two minutes before it reports the end.`

/** Adds `kube-proxy flows`, which shows the newest connections to Services. */
export function addFlowsCommand(program: Command): void {
  const command = program
    .command('flows')
    .description('show connections to Services: their clients, endpoints and results')
    .argument('[service]', 'only those to NAMESPACE/NAME[:PORT], or NAME[:PORT]')
    .option('--from <client>', 'only those from this pod, address or CIDR')
    .addOption(new Option('--verdict <verdict>', 'only those with this verdict').choices(verdicts))
    .option('--follow', 'go on until it is stopped')
    .addOption(new Option('-w, --watch', 'the same as --follow').implies({ follow: true }))
    .option('--limit <n>', 'begin with this number of the newest lines', '100')
    .addOption(daemonOption())
  addOutputOptions(command, '; a line of JSON for each connection')
    .addHelpText('after', usage)
    .action(flows)
}

const followEveryMs = 500

async function flows(service: string | undefined, flags: FlowsFlags): Promise<void> {
  const { from, verdict, follow, limit } = flags
  const follower = new FlowsFollower(flowsQuery({ service, from, verdict, limit }))
  const isWide = flags.output === 'wide'
  const isText = flags.output === undefined || isWide
  const look = { isWide, isColoured: showsColours(process.stdout) }
  const print = (answer: FlowsAnswer, isFirst: boolean) => {
    if (isText && isFirst) process.stdout.write(`${flowHead(isWide)}\n`)
    for (const flow of answer.flows) {
      const text = `${flowText(flow, look)}\n`
      process.stdout.write(printedOfMany(flags, { data: flow, text }))
    }
    const isEmpty = answer.flows.length + answer.leftOut === 0
    if (isText && isFirst && isEmpty && limit !== '0') noteNone({ service, from })
    noteLeftOut(follower.take(answer))
  }
  const everyMs = follow === true ? followEveryMs : undefined
  await watch(everyMs, stopSignal(), () => ask(flags.daemon, follower.query()), print)
}

async function ask(daemon: string, query: string): Promise<FlowsAnswer> {
  let text: string
  try {
    text = await get(daemon, `/flows?${query}`)
  } catch (error) {
    if (!(error instanceof ConfigError) || !error.message.includes('HTTP 404')) throw error
    throw new ConfigError(`the proxy on ${daemon} does not follow connections; ${howToFollow}`, {
      cause: error,
    })
  }
  const answer = flowsAnswerIn(text)
  if (answer) return answer
  throw new ConfigError(`http://${daemon}/flows answers with something else; is it kube-proxy-ts?`)
}
