import { connect } from 'node:net'
import { createSocket } from 'node:dgram'
import { printedOfMany, waitMs, type OutputFlags } from './shared-options.js'
import { setTimeout as delay } from 'node:timers/promises'
import { get, seeNode, type NodeFlags, type SeenNode } from './seen-node.js'
import { ConfigError, KernelError, messageOf } from '../errors.js'
import { connectionsIn } from '../inspect/top/daemon-numbers.js'
import { followLegacyTraces } from '../inspect/trace/legacy-trace.js'
import { followTraces, type TraceTarget } from '../inspect/trace/trace-rule.js'
import { serviceAt, understand } from '../inspect/explain/question.js'
import { hostPort, parseIp } from '../state/ip.js'
import { Iptables } from '../kernel/iptables.js'
import { isProxyMode } from '../config/config.js'
import { listIpvsConnections } from '../kernel/ipvs/connections.js'
import { listTrackedFlows } from '../kernel/conntrack.js'
import { settleMs, TraceCollector } from './trace-collector.js'
import { printable, type Protocol } from '../state/names.js'
import { stopSignal, unlessStopped } from './process.js'
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
  const count = positive('--count', flags.count)
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
  const before = await daemonConnections(seen, flags)
  const service = ownerAt(seen, target)
  const context = { seen, flags, before }
  const { stories, print, printed } = storiesOf(count, target, service, context)
  const interrupted = stopSignal()
  const stop = AbortSignal.any([interrupted, stories.signal])
  let notSent: Error | undefined
  const ready = () => {
    note(`waiting for a connection to ${address ? text : `${text} at ${place}`} …`)
    if (flags.send === true)
      void send(target, count).then((failure) => {
        notSent = failure
        if (failure) stories.end()
      })
    void pause(timeoutMs, stop).then(() => stories.end())
  }
  const page = seen?.mode === 'ebpf' && service !== '' ? await get(flags.daemon, '/metrics') : ''
  const on = { ready, event: (event: TraceEvent) => stories.add(event) }
  const atSockets = followSockets(
    { service, protocol: target.protocol, target: place, isIp6: target.family === 'IPv6' },
    { page, daemon: flags.daemon, found: (story) => stories.addWhole() && print(story, []), stop },
  )
  const follow = () =>
    legacy ? followLegacyTraces(target, legacy, on, stop) : followTraces(target, on, stop)
  await unlessStopped(interrupted, follow())
  await atSockets
  stories.end()
  await printed()
  if (notSent) throw notSent
  if (stories.size === 0 && !interrupted.aborted) throw noneCame(text, target, flags)
}

/** Prints each story when it has come, one after the other: an outcome may take a moment. */
function storiesOf(count: number, target: TraceTarget, service: string, context: Context) {
  const { seen, flags } = context
  const print = printer(flags)
  const ownerOf = seen ? chainOwners(seen.mode, seen.states, seen.config) : ownerInName
  let printed = Promise.resolve()
  const stories = new TraceCollector(count, target, (events) => {
    const story = storyOf(events, { target, ownerOf, ownerOfTarget: service })
    printed = printed.then(async () => print(story, await outcomeOf(story, target, context)))
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

function noneCame(text: string, { ip }: TraceTarget, { timeout, send }: TraceFlags): KernelError {
  const advice =
    send === true
      ? `\`ip route get ${ip}\` shows whether this node has a route to it`
      : '--send makes one from this node'
  return new KernelError(
    'timed-out',
    `follow a connection to ${text}: none came within ${waitMs('--timeout', timeout) / 1000} s; ${advice}`,
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

function positive(flag: string, text: string): number {
  const number = Number(text)
  if (Number.isInteger(number) && number > 0) return number
  throw new ConfigError(`${flag}: ${JSON.stringify(text)} is not a whole number above 0`)
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

/** Returns why a packet could not leave this node. */
async function send(target: TraceTarget, count: number): Promise<Error | undefined> {
  const { ip, port, protocol } = target
  if (protocol === 'SCTP')
    return new ConfigError('--send: it makes only TCP and UDP connections; use a client for SCTP')
  for (let sent = 0; sent < count; sent++) {
    const failure = protocol === 'UDP' ? await sendDatagram(target) : await connectTo(target)
    // A failure may also be an answer, such as that of a rule that rejects.
    const noRoute = failure && (await routeError(target))
    if (noRoute) {
      const advice = `this node has no route to it; see \`ip route get ${ip}\``
      const action = `send to ${hostPort(ip, port)}: ${messageOf(noRoute)}`
      return new KernelError('failed', `${action}; ${advice}`, { cause: noRoute })
    }
  }
  return undefined
}

function connectTo({ ip, port }: TraceTarget): Promise<Error | undefined> {
  const socket = connect({ host: ip, port, timeout: settleMs })
  let failure: Error | undefined
  socket.once('error', (error) => (failure = error))
  for (const event of ['connect', 'timeout']) socket.once(event, () => socket.destroy())
  return new Promise((resolve) => socket.once('close', () => resolve(failure)))
}

async function sendDatagram({ family, ip, port }: TraceTarget): Promise<Error | undefined> {
  const socket = createSocket(datagrams[family])
  const failure = await new Promise<Error | null>((done) => socket.send('', port, ip, done))
  socket.close()
  return failure ?? undefined
}

/** A datagram socket finds its route without a packet. */
async function routeError({ family, ip, port }: TraceTarget): Promise<Error | undefined> {
  const socket = createSocket(datagrams[family])
  const failure = await new Promise<Error | undefined>((done) => {
    socket.connect(port, ip, (error?: Error) => done(error))
  })
  socket.close()
  return failure
}

const datagrams = { IPv4: 'udp4', IPv6: 'udp6' } as const

interface Context {
  readonly seen: SeenNode | undefined
  readonly flags: TraceFlags
  readonly before: ReadonlyMap<string, number>
}

/** Results that the rules do not show: who answers, and which endpoint a listener or IPVS chose. */
async function outcomeOf(
  { from, end }: TraceStory,
  { family, ip, port, protocol }: TraceTarget,
  { seen, flags, before }: Context,
): Promise<readonly string[]> {
  if (end !== 'sent') return []
  if (seen && isProxyMode(seen.mode)) {
    const after = await daemonConnections(seen, flags)
    const risen = [...after].filter(([endpoint, count]) => count > (before.get(endpoint) ?? 0))
    if (risen.length === 0) return ['The proxy has not connected to an endpoint yet.']
    return [`The proxy connected to ${risen.map(([endpoint]) => endpoint).join(' or ')}.`]
  }
  const chosen = seen?.mode === 'ipvs' ? ipvsChoice(from, { family, ip, port, protocol }) : []
  const flows = await listTrackedFlows(family).catch(() => [])
  const flow = flows.find(
    (one) =>
      one.protocol === protocol &&
      one.destination.ip === ip &&
      one.destination.port === port &&
      hostPort(one.source.ip, one.source.port) === from,
  )
  if (!flow) return chosen
  const { answeredBy, answeredTo } = flow
  const by = hostPort(answeredBy.ip, answeredBy.port)
  return [
    ...chosen,
    `The kernel expects the answer from ${by}, to ${hostPort(answeredTo.ip, answeredTo.port)}.`,
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

/** Connections so far by `service endpoint`, as the proxy counts them in userspace mode. */
async function daemonConnections(
  seen: SeenNode | undefined,
  { daemon }: TraceFlags,
): Promise<ReadonlyMap<string, number>> {
  if (!seen || !isProxyMode(seen.mode)) return new Map()
  // The workers report their numbers every second.
  await delay(reportMs)
  const page = await get(daemon, '/metrics').catch(() => '')
  return new Map(
    connectionsIn(page).map(({ endpoint, service, count }) => [
      `${endpoint} for ${service}`,
      count,
    ]),
  )
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
