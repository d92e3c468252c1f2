import type { Command } from 'commander'
import {
  addNamedOptions,
  clientOf,
  namespaceOf,
  outputOf,
  targetOf,
  type NamedFlags,
} from './names.js'
import { answersOf, findProxies, onNode } from './proxies.js'
import { byTime, FlowReader, type RemoteFlow } from './flow-reader.js'
import { ConfigError, SourceError } from '../../errors.js'
import { Kubectl } from './kubectl.js'
import { pause } from '../../async.js'
import { printable } from '../../state/names.js'
import { printedOfMany, waitMs, wholeNumber } from '../shared-options.js'
import { stopSignal, unlessStopped } from '../process.js'

interface TraceFlags extends NamedFlags {
  readonly from?: string
  readonly count: string
  readonly timeout: string
}

const usage = `
The command waits for connections in the streams of the proxies, which must run with --flows, and shows
the result of each. \`kube-proxy trace\` on the node shows the rules that a packet went through.`

/** Adds `kubectl svcproxy trace`: waits for the next connection to a Service. */
export function addTraceCommand(program: Command): void {
  const command = program
    .command('trace')
    .description('wait for connections to a Service and show their results')
    .argument('<service>', 'svc/NAME[:PORT] or NAME[:PORT]')
    .option('--from <client>', 'only those from pod/NAME, an address or a CIDR')
    .option('--count <n>', 'end after this number of connections', '1')
    .option('--timeout <duration>', 'end when no connection comes in this time', '60s')
  addNamedOptions(command, 'one').addHelpText('after', usage).action(trace)
}

const askEveryMs = 1_000

async function trace(text: string, flags: TraceFlags): Promise<void> {
  const count = wholeNumber('--count', flags.count, 1, 999_999)
  const timeoutMs = waitMs('--timeout', flags.timeout)
  if (flags.output === 'name') throw new ConfigError('-o name: connections have no names')
  const kubectl = new Kubectl(flags)
  const namespace = await namespaceOf(kubectl, flags)
  const client =
    flags.from === undefined ? undefined : await clientOf(kubectl, flags.from, namespace)
  const node = flags.node ?? client?.node
  const proxies = await findProxies(kubectl, flags, node)
  const service = targetOf(text, namespace)
  const query = { service, ...(client ? { from: client.addresses.join(',') } : {}), limit: '0' }
  const reader = new FlowReader(new URLSearchParams(query))
  const stop = stopSignal()
  const seen = new Set<string>()
  const since = performance.now()
  // The first reading finds the present end of each stream.
  const begin = await unlessStopped(stop, reader.read(proxies))
  if (!begin) return
  const [first] = answersOf(begin)
  if (first)
    process.stderr.write(
      `${onNode(first.proxy, `trace ${printable(service)}`, 'the rules on the way')}\n`,
    )
  process.stderr.write(`waiting for a connection to ${printable(service)} …\n`)
  const end = performance.now() + timeoutMs
  while (seen.size < count && !stop.aborted) {
    const asked = await unlessStopped(stop, reader.read(proxies))
    if (!asked) return
    const fresh = answersOf(asked).flatMap(({ answer }) => answer.flows)
    // Kernel modes report the end of a connection minutes later.
    const isNew = ({ durationMs = 0 }: RemoteFlow) => durationMs <= performance.now() - since
    for (const flow of fresh.filter(isNew).sort(byTime)) {
      // Some modes report only the end of a connection; others report its beginning, too.
      // One that was refused at its socket has no client, and one line.
      const who = flow.client === '' ? flow.time : flow.client
      const id = `${flow.node} ${flow.protocol} ${who} ${flow.service}`
      if (seen.has(id) || seen.size >= count) continue
      seen.add(id)
      process.stdout.write(printedOfMany(outputOf(flags), { data: flow, text: storyOf(flow) }))
    }
    if (seen.size >= count) return
    if (performance.now() > end) break
    await pause(askEveryMs, stop)
  }
  if (seen.size === 0 && !stop.aborted) {
    throw new SourceError(
      `follow a connection to ${service}: none came within ${timeoutMs / 1000} s`,
    )
  }
}

function storyOf(flow: RemoteFlow): string {
  const named = (pod: string, place: string) => (pod === '' ? place : `${pod} (${place})`)
  const { time, protocol, client, clientPod, node, service, address, verdict, why } = flow
  return [
    `${time} ${protocol} from ${named(clientPod, client)}, on node ${node}`,
    `  asked        ${service}${address === '' ? '' : ` at ${address}`}`,
    `  endpoint     ${flow.endpoint === '' ? 'none' : named(flow.endpointPod, flow.endpoint)}`,
    `  verdict      ${verdict}${why === '' ? '' : `: ${why}`}`,
  ]
    .map((line) => `${printable(line)}\n`)
    .join('')
}
