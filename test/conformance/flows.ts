import { setTimeout as sleep } from 'node:timers/promises'
import type { ModeName } from '../../lib/config/config.js'
import type { IpFamily } from '../../lib/state/ip.js'
import type { FlowRequest, FlowResult } from '../../lib/lab/world/agent-protocol.js'
import { addressOf, places } from '../../lib/lab/world/topology.js'
import type { CaseWorld } from './case-world.js'
import type { Client, Difference, Flow, Gets, Target } from './case.js'
import type { CaseService } from './objects.js'
import { patienceMs } from '../support/until.js'
import { seen, verifyFailure, verifyFlow, verifyReply } from './verify-flow.js'

/** One flow of a case, from one client to one target in one family. */
export interface Check {
  readonly flow: Flow
  readonly client: Client
  readonly service: CaseService
  readonly target: Target
  readonly family: IpFamily
  /** Its name in reports. */
  readonly label: string
  readonly host: string
  readonly port: number
  readonly protocol: FlowRequest['protocol']
  readonly gets: Gets
  readonly source: Flow['source']
  /** The source that a backend sees of a client on its own bridge. */
  readonly bridgedSource: Flow['source']
  /** The time for a reply that must come. */
  readonly replyMs: number
}

interface KeptConnection {
  readonly client: Client
  /** The result of the first request: the backend that answered, and the client that it saw. */
  readonly first: FlowResult | undefined
}

/** What flows remember between the steps of one case. */
export interface FlowMemory {
  /** By client, target and IP family: the backend that a client with affinity reached. */
  readonly sticky: Map<string, string>
  /** Flows in which a client reached another backend than before. */
  readonly moved: Set<Flow>
  /** By connection name: where it was opened, and its backend. */
  readonly kept: Map<string, KeptConnection>
}

/** Endpoints see the client everywhere, or everywhere except between pods of one bridge. */
export type SourceKept = 'everywhere' | 'past-bridges'

/** Which of a flow's expectations hold. */
export interface Expected {
  /** The mode whose expectations in `differs` hold; undefined for the reference proxy. */
  readonly mode: ModeName | undefined
  /** Endpoints see the same sources as in the other modes, whatever `differs` says. */
  readonly keepsSource?: SourceKept
  /** The time for a reply that must come; enough for a busy machine if absent. */
  readonly replyMs?: number
}

/** All checks of one flow. */
export function expandFlow(
  flow: Flow,
  services: ReadonlyMap<string, CaseService>,
  { mode, keepsSource, replyMs = patienceMs }: Expected,
): readonly Check[] {
  const service = services.get(flow.service)
  if (!service) throw new Error(`a flow goes to Service ${flow.service}, which no step made`)
  const port =
    flow.port === undefined
      ? service.ports[0]
      : service.ports.find(({ name }) => name === flow.port)
  if (!port) throw new Error(`Service ${flow.service} has no port ${String(flow.port)}`)
  const difference = mode === undefined ? undefined : differenceIn(flow, mode)
  const sourceIf = (isSame: boolean) =>
    isSame || difference?.source === undefined ? flow.source : (difference.source ?? undefined)
  const source = sourceIf(keepsSource !== undefined)
  const bridgedSource = sourceIf(keepsSource === 'everywhere')
  const expected = difference?.sticky === undefined ? flow : { ...flow, sticky: difference.sticky }
  return flow.from.flatMap((client) =>
    flow.to.flatMap((target) =>
      flow.families.map((family) => ({
        flow: expected,
        client,
        service,
        target,
        family,
        host: hostOf(target, family, service, flow),
        port: flow.portNumber ?? portOf(target, port),
        protocol: flow.ping ? 'ICMP' : port.protocol,
        gets: difference?.gets ?? flow.gets,
        source,
        bridgedSource,
        replyMs,
        label:
          `${client.place}${client.addressIndex > 0 ? `#${client.addressIndex + 1}` : ''} to ` +
          `${flow.service}${flow.port === undefined ? '' : `:${flow.port}`} ${target} ` +
          `${flow.ping ? 'ping' : port.protocol} ${family}` +
          (flow.use === undefined ? '' : ` on kept ${flow.use}`),
      })),
    ),
  )
}

/** The mode without rules differs as userspace mode does, unless it has a difference of its own. */
function differenceIn({ differs }: Flow, mode: ModeName): Difference | undefined {
  return differs[mode] ?? (mode === 'winuserspace' ? differs.userspace : undefined)
}

function hostOf(target: Target, family: IpFamily, service: CaseService, flow: Flow): string {
  switch (target) {
    case 'cluster':
      return service.clusterIps[family]
    case 'node':
      return addressOf('node', family, 0)
    case 'node-second':
      return addressOf('node', family, 1)
    case 'node-bridge':
      return addressOf('node', family, 2)
    case 'localhost':
      return family === 'IPv4' ? '127.0.0.1' : '::1'
    case 'load-balancer':
      return service.loadBalancerIps[family]
    case 'external':
      return service.externalIps[family]
    case 'endpoint':
      return addressOf(typeof flow.gets === 'string' ? 'pod-1' : (flow.gets[0] ?? 'pod-1'), family)
    case 'unused-cluster-ip':
      return service.unusedClusterIps[family]
  }
}

function portOf(target: Target, port: CaseService['ports'][number]): number {
  switch (target) {
    case 'node':
    case 'node-second':
    case 'node-bridge':
    case 'localhost':
      return port.nodePort
    case 'endpoint':
      return port.target
    default:
      return port.port
  }
}

/** With so many connections a backend in use is missed once in ten million tries. */
function enoughFor(backends: number): number {
  return backends <= 1 ? 2 : Math.ceil(Math.log(1e7 * backends) / -Math.log(1 - 1 / backends))
}

/** A factor above 1 for a machine that is itself a process, such as User Mode Linux. */
export const patience = Number(process.env.CONFORMANCE_PATIENCE ?? 1)
/** No answer in this time means dropped. */
const silenceMs = 400
const repeatMs = 1200 * patience
/** A pause on one slow processor, so that clients leave time for the proxy. */
const betweenRoundsMs = patience > 1 ? 50 : 0

/**
 * Makes connections one after the other until it is stopped; returns their errors. At
 * least one is made after the stop, so that the new state is checked too.
 */
export async function runThroughout(
  world: CaseWorld,
  check: Check,
  stopped: () => boolean,
): Promise<readonly string[]> {
  const problems = new Map<string, number>()
  const { gets } = check
  let total = 0
  for (let isLast = false; !isLast;) {
    if (total > 0 && betweenRoundsMs > 0) await sleep(betweenRoundsMs)
    isLast = stopped()
    const results = await world.agent(check.client.place).flow({ ...requestOf(check), count: 2 })
    total += results.length
    if (gets === 'whatever') continue
    for (const result of results) {
      const found =
        typeof gets === 'string' ? verifyFailure(gets, result) : verifyReply(check, gets, result)
      for (const problem of found) problems.set(problem, (problems.get(problem) ?? 0) + 1)
    }
  }
  return [...problems].map(([problem, count]) => `${count} of ${total} meanwhile: ${problem}`)
}

/** Runs one check; returns what is wrong. */
export async function runCheck(
  world: CaseWorld,
  check: Check,
  memory: FlowMemory,
): Promise<readonly string[]> {
  const { flow } = check
  if (check.gets === 'whatever') return []
  if (flow.use !== undefined) return useKept(world, check, `${flow.use}/${check.family}`, memory)
  const request = requestOf(check)
  const agent = world.agent(check.client.place)
  const results = [...(await agent.flow(request))]
  if (typeof check.gets !== 'string' && flow.keep === undefined && !isFixed(flow)) {
    const total = enoughFor(check.gets.length)
    while (results.length < total && !sawAll(results, check.gets)) {
      results.push(...(await agent.flow(request)))
    }
  }
  if (flow.keep !== undefined) {
    memory.kept.set(`${flow.keep}/${check.family}`, {
      client: check.client,
      first: results[0],
    })
  }
  return verifyFlow(check, results, memory)
}

const isFixed = (flow: Flow) => flow.count !== undefined || flow.evenly || flow.sticky !== false

/**
 * An SCTP client without a source address tells its peer all its addresses. A translated connection
 * is then reset after some seconds, as docs/kernels.md says.
 */
const hasSource = ({ client, protocol, host }: Check) =>
  client.addressIndex > 0 || (protocol === 'SCTP' && !isLoopback(host))
const isLoopback = (host: string) => host === '::1' || host.startsWith('127.')

function requestOf(check: Check): FlowRequest {
  const { flow, client, family } = check
  return {
    protocol: check.protocol,
    host: check.host,
    port: check.port,
    timeoutMs: waitOf(check),
    // The refusal of a datagram is a datagram too and may be lost, so the client repeats.
    ...(check.gets === 'refused' ? { repeatMs } : {}),
    count: flow.keep === undefined ? countOf(check) : 1,
    ...(hasSource(check) ? { from: addressOf(client.place, family, client.addressIndex) } : {}),
    ...(flow.keep === undefined ? {} : { keepAs: `${flow.keep}/${family}` }),
    ...(flow.payloadBytes === undefined ? {} : { payloadBytes: flow.payloadBytes }),
    ...(flow.halfClose ? { halfClose: true } : {}),
  }
}

function waitOf({ gets, replyMs }: Check): number {
  if (typeof gets === 'string' && gets !== 'refused') return silenceMs
  return replyMs
}

function countOf({ flow, gets }: Check): number {
  if (flow.count !== undefined) return flow.count
  if (typeof gets === 'string') return 1
  if (flow.evenly) return 300 * gets.length
  if (flow.sticky !== false) return 14
  return gets.length <= 1 ? 2 : 6 * gets.length
}

function sawAll(results: readonly FlowResult[], expected: readonly string[]): boolean {
  return expected.every((place) => results.some(({ backend }) => backend === place))
}

async function useKept(
  world: CaseWorld,
  check: Check,
  id: string,
  memory: FlowMemory,
): Promise<readonly string[]> {
  const kept = memory.kept.get(id)
  if (!kept) return [`no connection ${id} was opened`]
  if (check.flow.stray) await letStray(world, check, id, kept)
  const waits = check.gets === 'same' || typeof check.gets !== 'string' ? check.replyMs : silenceMs
  const result = await world.agent(kept.client.place).send(id, waits)
  if (check.gets === 'same') {
    const { backend } = kept.first ?? {}
    return result.backend === backend && result.outcome === 'reply'
      ? []
      : [`expected ${String(backend)} again, got ${seen(result)}`]
  }
  return verifyFlow(check, [result], memory)
}

/** A packet reaches the other end in this time, and its answer comes back. */
const settleMs = 100

/**
 * CT16: at the next request the backend sends a packet outside of the TCP window. On a busy machine
 * it may listen too late for the first one.
 */
async function letStray(
  world: CaseWorld,
  check: Check,
  id: string,
  { client, first }: KeptConnection,
): Promise<void> {
  const backend = places.find((place) => place === first?.backend)
  if (backend === undefined) throw new Error(`a stray on ${id}: nobody has answered on it`)
  const end = new AbortController()
  const sent = world
    .agent(backend)
    .stray({
      own: addressOf(backend, check.family),
      peer: first?.source ?? '',
      peerPort: first?.sourcePort ?? 0,
      timeoutMs: check.replyMs,
    })
    .finally(() => end.abort())
  const asking = async () => {
    await sleep(settleMs)
    while (!end.signal.aborted) {
      await world.agent(client.place).send(id, check.replyMs)
      await sleep(settleMs)
    }
  }
  await Promise.all([sent, asking()])
}
