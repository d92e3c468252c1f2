import { printedOfMany, waitMs, wholeNumber, type OutputFlags } from './shared-options.js'
import { setTimeout as delay } from 'node:timers/promises'
import { get, seeNode, type NodeFlags, type SeenNode } from './seen-node.js'
import { ConfigError, KernelError, messageOf } from '../errors.js'
import { CountedPages } from '../inspect/trace/counted-pages.js'
import { followLegacyTraces } from '../inspect/trace/legacy-trace.js'
import { followTraces, type TraceTarget } from '../inspect/trace/trace-rule.js'
import { serviceAt, understand } from '../inspect/explain/question.js'
import { hostPort, parseIp, type IpFamily } from '../state/ip.js'
import { Iptables } from '../kernel/iptables.js'
import { isProxyMode } from '../config/config.js'
import { listIpvsConnections } from '../kernel/ipvs/connections.js'
import { listTrackedFlows } from '../kernel/conntrack.js'
import type { TrackedFlow } from '../kernel/flow-message.js'
import { settleMs, TraceCollector } from './trace-collector.js'
import { printable, type Protocol } from '../state/names.js'
import { stopSignal, unlessStopped } from './process.js'
import { outcomeLines, send, type Sent } from './trace-send.js'
import { notForwarding } from '../kernel/obstacles.js'
import {
  chainOwners,
  ownerInName,
  storyOf,
  storyText,
  type TraceStory,
} from '../inspect/trace/story.js'
import type { TraceEvent } from '../inspect/trace/events.js'
import { pause } from '../async.js'
import { socketStories, type TracedService } from '../inspect/trace/socket-stories.js'

interface TraceFlags extends NodeFlags, OutputFlags {
  readonly protocol?: Protocol
  readonly timeout: string
  readonly count: string
  readonly send?: boolean
}

/** `kube-proxy trace`. It is loaded only when it is called: it needs the kernel of Linux. */
export async function trace(text: string, flags: TraceFlags): Promise<void> {
  const address = addressOf(text, flags.protocol)
  const count = wholeNumber('--count', flags.count, 1, 999_999)
  const timeoutMs = waitMs('--timeout', flags.timeout)
  const note = (line: string) => void process.stderr.write(`${printable(line)}\n`)
  // Without the state of the node the rules are shown without the names of their Services.
  const seen = await seeNode(flags).catch((error: unknown) => {
    if (!address) throw error
    note(`chains are shown without the names of their Services: ${messageOf(error)}`)
    return undefined
  })
  const target = address ?? serviceTarget(text, flags.protocol, seen)
  const place = hostPort(target.ip, target.port)
  const isNftables = seen?.mode === 'nftables' || seen?.mode === 'ebpf'
  const legacy = isNftables ? undefined : await legacyOf(target)
  const context = contextOf(seen, flags, target)
  await lookAtCounts(context)
  const { stories, print, printed } = storiesOf(count, target, context)
  const interrupted = stopSignal()
  const stop = AbortSignal.any([interrupted, stories.signal])
  let sending: Promise<Sent> | undefined
  const ready = () => {
    note(`waiting for a connection to ${address ? text : `${text} at ${place}`} …`)
    if (flags.send === true) sending = send(target, count, stop)
    void sending?.then(({ failure }) => failure && stories.end())
    void pause(timeoutMs, stop).then(() => stories.end())
  }
  const page =
    seen?.mode === 'ebpf' && context.asked.service !== '' ? await get(flags.daemon, '/metrics') : ''
  const on = { ready, event: (event: TraceEvent) => stories.add(event) }
  const atSockets = followSockets(context.asked, {
    page,
    daemon: flags.daemon,
    found: (story) => stories.addWhole() && print(story, []),
    stop,
  })
  const follow = () =>
    legacy ? followLegacyTraces(target, legacy, on, stop) : followTraces(target, on, stop)
  await unlessStopped(interrupted, follow())
  await atSockets
  stories.end()
  await printed()
  const { failure, outcomes } = (await sending) ?? { outcomes: [] }
  if (failure) throw failure
  for (const line of outcomeLines(outcomes)) note(line)
  if (stories.size === 0 && !interrupted.aborted) throw await noneCame(text, target, flags)
}

function contextOf(seen: SeenNode | undefined, flags: TraceFlags, target: TraceTarget): Context {
  const { ip, port, family, protocol } = target
  const service = ownerAt(seen, target)
  const asked = { service, protocol, target: hostPort(ip, port), isIp6: family === 'IPv6' }
  const isCarried = seen !== undefined && isProxyMode(seen.mode) && service !== ''
  return { seen, flags, asked, counted: isCarried ? new CountedPages(asked) : undefined }
}

/** Prints each story when it has come, one after the other: an outcome may take a moment. */
function storiesOf(count: number, target: TraceTarget, context: Context) {
  const { seen, flags, asked } = context
  const print = printer(flags)
  const ownerOf = seen ? chainOwners(seen.mode, seen.states, seen.config) : ownerInName
  let printed = Promise.resolve()
  const stories = new TraceCollector(count, target, (events) => {
    const story = storyOf(events, { target, ownerOf, ownerOfTarget: asked.service })
    const beganAt = performance.now() - settleMs
    printed = printed.then(async () =>
      print(story, await outcomeOf(story, { ...target, beganAt }, context)),
    )
    printed.catch(() => stories.end())
  })
  return { stories, print, printed: () => printed }
}

/** Prints one story after the other. */
function printer(flags: TraceFlags) {
  let gap = ''
  return (story: TraceStory, afterwards: readonly string[]): void => {
    const text = `${gap}${storyText(story, afterwards)}`
    process.stdout.write(printedOfMany(flags, { data: { ...story, afterwards }, text }))
    gap = '\n'
  }
}

async function noneCame(
  text: string,
  target: TraceTarget,
  { timeout, send }: TraceFlags,
): Promise<KernelError> {
  const { ip } = target
  const advice =
    send === true
      ? `\`ip route get ${ip}\` shows whether this node has a route to it`
      : '--send makes one from this node'
  return new KernelError(
    'timed-out',
    `follow a connection to ${text}: none came within ${waitMs('--timeout', timeout) / 1000} s; ${advice}${await trackedText(target)}`,
  )
}

/** Connections from before, which may lead to an endpoint that is gone. */
async function trackedText(target: TraceTarget): Promise<string> {
  const flows = await flowsTo(target)
  const [first] = flows
  if (!first) return ''
  const { source, answeredBy } = first
  const [client, by] = [source, answeredBy].map(({ ip, port }) => hostPort(ip, port))
  return `. Only new ones are followed: the connection table has ${flows.length} already, such as that of ${client}, which ${by} answers`
}

async function flowsTo({
  family,
  ip,
  port,
  protocol,
}: TraceTarget): Promise<readonly TrackedFlow[]> {
  const flows = await listTrackedFlows(family).catch(() => [])
  return flows.filter(
    (one) =>
      one.protocol === protocol && one.destination.ip === ip && one.destination.port === port,
  )
}

/** The target if the text is an address, which needs no Service; undefined if it is a name. */
function addressOf(text: string, protocol: Protocol = 'TCP'): TraceTarget | undefined {
  const found = /^(?:\[([^\]]+)\]|([^:]+)):(\d{1,5})$/.exec(text)
  const ip = parseIp(found?.[1] ?? found?.[2] ?? '')
  const port = Number(found?.[3])
  if (!ip) return undefined
  if (port > 0 && port < 65_536) return { family: ip.family, ip: ip.text, port, protocol }
  throw new ConfigError(
    `${JSON.stringify(text)} has no port from 1 to 65535; give IP:PORT, such as 10.96.0.10:80`,
  )
}

/** The ClusterIP of the service port that `explain` finds by the same name. */
function serviceTarget(target: string, protocol: Protocol | undefined, seen?: SeenNode) {
  const found = understand({ target, from: 'node', protocol }, seen?.states ?? [])
  if (typeof found === 'string') throw new ConfigError(found)
  const { family, destination, port, protocol: own } = found.packet
  return { family, ip: destination, port, protocol: own } satisfies TraceTarget
}

/** The Service that has the address; empty for none. */
function ownerAt(seen: SeenNode | undefined, { family, ip, port, protocol }: TraceTarget): string {
  const state = seen?.states.find((one) => one.family === family)
  return (state && serviceAt(state, ip, port, protocol)?.portName) ?? ''
}

/** iptables, if the rules of this node are those of iptables-legacy. */
async function legacyOf({ family }: TraceTarget): Promise<Iptables | undefined> {
  const iptables = await Iptables.open({ family }).catch(() => undefined)
  return iptables?.capabilities.backend === 'legacy' ? iptables : undefined
}

interface Context {
  readonly seen: SeenNode | undefined
  readonly flags: TraceFlags
  readonly asked: TracedService
  /** What the proxy has counted; undefined where it does not carry the connections itself. */
  readonly counted: CountedPages | undefined
}

/** Results that the rules do not show: who answers, and which endpoint a listener or IPVS chose. */
async function outcomeOf(
  story: TraceStory,
  { family, ip, port, protocol, beganAt }: TraceTarget & { readonly beganAt: number },
  context: Context,
): Promise<readonly string[]> {
  const { seen, asked, counted } = context
  const { from, end } = story
  if (end === 'lost') return lostLines(story, family)
  if (end !== 'sent') return []
  if (counted) {
    await lookAtCounts(context)
    const endpoints = counted.endpointsSince(beganAt)
    if (endpoints.length === 0) return ['The proxy has not connected to an endpoint yet.']
    return [`The proxy connected to ${endpoints.join(' or ')} for ${asked.service}.`]
  }
  const chosen = seen?.mode === 'ipvs' ? ipvsChoice(from, { family, ip, port, protocol }) : []
  const flows = await flowsTo({ family, ip, port, protocol })
  const flow = flows.find(({ source }) => hostPort(source.ip, source.port) === from)
  if (!flow) return chosen
  const { answeredBy, answeredTo } = flow
  const by = hostPort(answeredBy.ip, answeredBy.port)
  return [
    ...chosen,
    `The kernel expects the answer from ${by}, to ${hostPort(answeredTo.ip, answeredTo.port)}.`,
  ]
}

function lostLines({ inInterface }: TraceStory, family: IpFamily): readonly string[] {
  if (inInterface === '') {
    return ['Mostly this node has no route to the endpoint: `ip route get ENDPOINT` tells.']
  }
  const causes = notForwarding(family, { inInterface })
  return causes.length > 0
    ? causes.map((text) => `Here ${text}.`)
    : [
        'Mostly there is no route to the endpoint, or none back to the sender by that interface (rp_filter): `ip route get ENDPOINT from SENDER iif INTERFACE` tells.',
      ]
}

/** The endpoint that IPVS chose. The rules of ipvs mode do not show it. */
function ipvsChoice(from: string, { ip, port, protocol }: TraceTarget): readonly string[] {
  const found = listIpvsConnections().find(
    (one) => one.protocol === protocol && one.client === from && one.virtual === hostPort(ip, port),
  )
  return found
    ? [`IPVS sent it to ${found.real}; the state of the connection is ${found.state}.`]
    : []
}

/** Asks the proxy for its counts, if it carries the connections itself. */
async function lookAtCounts({ counted, flags }: Context): Promise<void> {
  if (!counted) return
  // The workers report their numbers every second.
  await delay(reportMs)
  const at = performance.now()
  const page = await get(flags.daemon, '/metrics').catch(() => undefined)
  if (page !== undefined) counted.add(page, at)
}

const reportMs = 1_500

const lookEveryMs = 250

interface SocketWatch {
  /** The metrics of the proxy at the start; empty where no socket is translated. */
  readonly page: string
  readonly daemon: string
  readonly found: (story: TraceStory) => void
  readonly stop: AbortSignal
}

/** Reports connections that socket programs have translated, until the signal. */
async function followSockets(
  asked: TracedService,
  { page, daemon, found, stop }: SocketWatch,
): Promise<void> {
  let before = page
  while (before !== '' && !stop.aborted) {
    await pause(lookEveryMs, stop)
    const after = await get(daemon, '/metrics').catch((error: unknown) => {
      // The proxy may be restarting; its numbers go on where they were.
      if (error instanceof ConfigError) return before
      throw error
    })
    for (const story of socketStories(before, after, asked)) found(story)
    before = after
  }
}
