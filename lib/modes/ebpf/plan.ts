import type { DesiredService, DesiredState, Endpoint, Verdict } from '../../state/desired-state.js'
import type { Balance } from '../../state/balance.js'
import { isLoopback, parseIp, type IpFamily } from '../../state/ip.js'
import { readAnnotation } from '../../state/annotations.js'
import { socketsAnnotation } from '../../state/known-annotations.js'
import { PersistentMap, type Derivation } from '../../state/persistent-map.js'
import type { FamilyPlan, Planner } from '../mode.js'
import { firstOf, weightedPlaces } from '../shares.js'
import { updateRequests, type Requested, type Requests } from '../requests.js'
import type { DrawWord, SocketProtocol } from './layout.js'
import type { EbpfSettings } from './settings.js'
import { translatedTwice, type TranslatedTwice } from './translated-twice.js'

/** The plan for the socket programs, and the plan for the packets that they did not translate. */
export interface EbpfPlan extends FamilyPlan {
  readonly packets: FamilyPlan
  readonly sockets: SocketPlan
}

/** What the maps of one family hold. */
export interface SocketPlan {
  readonly family: IpFamily
  /** By `DesiredService.key`. */
  readonly parts: PersistentMap<SocketPart>
  readonly frontends: Requests<Frontend>
  /** The addresses at which node ports are served. */
  readonly nodeAddresses: readonly NodeAddress[]
}

interface SocketPart {
  readonly targets: readonly TargetList[]
  readonly frontends: readonly Frontend[]
}

/** An address and port that sockets ask for. */
export interface Frontend extends Requested {
  /** Undefined for a node port, which is served at every address of `nodeAddresses`. */
  readonly address: string | undefined
  readonly protocol: SocketProtocol
  readonly port: number
  /** No cluster IP. A node may have this address, and use the port as a client. */
  readonly isExternal: boolean
  /** `TargetList.id` */
  readonly targets: string
}

/** Where calls to some frontends go: one entry of the map `services`. */
export interface TargetList {
  readonly id: string
  /** `leave`: the packet path decides, because a socket cannot. */
  readonly verdict: 'balance' | 'refuse' | 'leave'
  /** An endpoint that should get more than others is in the list several times. */
  readonly endpoints: readonly Endpoint[]
  readonly draw: DrawWord
  /** 0: none. */
  readonly affinitySeconds: number
  /** The map `members` holds these endpoints, for later questions whether one is still in use. */
  readonly isRemembered: boolean
  /** Endpoints that get no new clients, but still serve the UDP clients that they have (E21). */
  readonly kept: readonly Endpoint[]
}

export interface NodeAddress {
  readonly address: string
  /** Loopback: other network namespaces have their own. */
  readonly hostOnly: boolean
}

export function ebpfPlanner(
  settings: Pick<EbpfSettings, 'localhostNodePorts'>,
  packets: Pick<Planner, 'plan'>,
): (state: DesiredState) => EbpfPlan {
  const sockets = socketPlanner(settings)
  return (state) => ({
    family: state.family,
    packets: packets.plan(state),
    sockets: sockets(state),
  })
}

interface Memory {
  readonly derivation: Derivation<DesiredService, SocketPart>
  /** Of Services that are left to packets because they would be translated twice. */
  readonly left: Derivation<DesiredService, SocketPart>
  last: (Pick<SocketPlan, 'parts' | 'frontends'> & { readonly twice: TranslatedTwice }) | undefined
}

/** Makes plans. It remembers the last ones only to save work. */
export function socketPlanner({
  localhostNodePorts,
}: Pick<EbpfSettings, 'localhostNodePorts'>): (state: DesiredState) => SocketPlan {
  const memories: Readonly<Record<IpFamily, Memory>> = {
    IPv4: { derivation: {}, left: {}, last: undefined },
    IPv6: { derivation: {}, left: {}, last: undefined },
  }
  return (state) => {
    const memory = memories[state.family]
    const twice = translatedTwice(state, memory.last?.twice)
    const left = state.services.pick([...twice.keys]).derive(memory.left, leftToPackets)
    const parts = state.services.derive(memory.derivation, socketPart).update(left)
    const changes = parts.since(memory.last?.parts)
    const frontends = updateRequests(memory.last?.frontends ?? noFrontends, changes, reader)
    memory.last = { parts, frontends, twice }
    return {
      family: state.family,
      parts,
      frontends,
      nodeAddresses: nodeAddresses(state, localhostNodePorts),
    }
  }
}

/** The plan as if there were only these service ports. */
export function onlyOf(plan: SocketPlan, keys: readonly string[]): SocketPlan {
  const parts = plan.parts.pick(keys)
  return { ...plan, parts, frontends: updateRequests(noFrontends, parts.since(undefined), reader) }
}

const noFrontends = PersistentMap.empty<readonly Frontend[]>()

const reader = {
  of: ({ frontends }: SocketPart) => frontends.map((each) => [frontendId(each), each] as const),
  isSame: (a: Frontend, b: Frontend) =>
    a.targets === b.targets && a.isLast === b.isLast && a.isExternal === b.isExternal,
}

/** A text that is different for each frontend of a family. */
export function frontendId({
  address,
  protocol,
  port,
}: Pick<Frontend, 'address' | 'protocol' | 'port'>): string {
  return `${address ?? 'node'} ${protocol} ${port}`
}

const nothing: SocketPart = { targets: [], frontends: [] }

/**
 * Rules decide about the addresses of this Service, so sockets leave them to rules. Without this
 * another Service without endpoints at the same address would refuse there.
 */
function leftToPackets({ key, protocol, ...service }: DesiredService): SocketPart {
  const { externallyAccessible, externalIps, loadBalancerIps, port, nodePort } = service
  // SCTP is left to packets: programs never see its datagrams.
  if (protocol === 'SCTP' || !externallyAccessible) return nothing
  const list = leftList(key)
  const led = { owner: key, protocol, isExternal: true, ...leadTo(list) }
  const addresses = [...new Set([...externalIps, ...loadBalancerIps])]
  const frontends: Frontend[] = addresses.map((address) => ({ ...led, port, address }))
  if (nodePort !== 0) frontends.push({ ...led, port: nodePort, address: undefined })
  return frontends.length === 0 ? nothing : { targets: [list], frontends }
}

const leftList = (key: string): TargetList => ({
  ...{ id: `${key} left`, verdict: 'leave', endpoints: [], kept: [] },
  ...{ draw: 'chance', affinitySeconds: 0, isRemembered: false },
})

/** What the maps hold for one service port. */
function socketPart(service: DesiredService): SocketPart {
  const { protocol, key } = service
  const isOut = readAnnotation(service.options, socketsAnnotation) === 'off' || !canDraw(service)
  if (protocol === 'SCTP' || isOut) return leftToPackets(service)
  const internal = listOf(service, key, choiceOf(service.internal, service))
  const external = externalList(service, internal)
  const led = { owner: key, protocol, port: service.port }
  const toInternal = { ...led, isExternal: false, ...leadTo(internal) }
  const frontends: Frontend[] = [{ ...toInternal, address: service.clusterIp }]
  if (external) {
    const toExternal = { ...led, isExternal: true, ...leadTo(external) }
    for (const address of socketAddresses(service)) frontends.push({ ...toExternal, address })
    if (service.nodePort !== 0) {
      frontends.push({ ...toExternal, address: undefined, port: service.nodePort })
    }
  }
  const targets = external && external !== internal ? [internal, external] : [internal]
  const guarded = guardedAddresses(service)
  if (guarded.length === 0) return { targets, frontends }
  const left = leftList(key)
  const toLeft = { ...led, isExternal: true, ...leadTo(left) }
  for (const address of guarded) frontends.push({ ...toLeft, address })
  return { targets: [...targets, left], frontends }
}

/**
 * Rules refuse only what no other Service at the same address and port translates, so the programs
 * do the same.
 */
function leadTo({ id, verdict }: TargetList) {
  return { targets: id, isLast: verdict === 'refuse' }
}

function socketAddresses(service: DesiredService): readonly string[] {
  const open = service.sourceRanges.length === 0 ? service.loadBalancerIps : []
  return [...new Set([...service.externalIps, ...open])]
}

/**
 * A call has no source address yet. Addresses that only some sources may use are left to packets.
 */
function guardedAddresses({
  sourceRanges,
  loadBalancerIps,
  externalIps,
}: DesiredService): readonly string[] {
  if (sourceRanges.length === 0) return []
  return loadBalancerIps.filter((address) => !externalIps.includes(address))
}

/** A call has no source address yet. Balances that need it are left to packets. */
function canDraw({ balance }: DesiredService): boolean {
  return balance?.used !== 'source-hash' && balance?.used !== 'maglev'
}

const drawFor: Readonly<Partial<Record<Balance, DrawWord>>> = {
  'round-robin': 'turn',
  'least-connections': 'fewest',
}

type Choice = Pick<TargetList, 'verdict' | 'endpoints'>

function choiceOf(verdict: Verdict, { clusterEndpoints, localEndpoints }: DesiredService): Choice {
  switch (verdict) {
    case 'cluster':
      return { verdict: 'balance', endpoints: clusterEndpoints }
    case 'local':
      return { verdict: 'balance', endpoints: localEndpoints }
    case 'reject':
      return { verdict: 'refuse', endpoints: [] }
    case 'drop':
      return { verdict: 'leave', endpoints: [] }
  }
}

function listOf(service: DesiredService, id: string, choice: Choice): TargetList {
  const affinitySeconds = service.affinitySeconds ?? 0
  const isRemembered = affinitySeconds > 0 || service.protocol === 'UDP'
  const endpoints = drawnOf(service, choice.endpoints)
  // An endpoint that serves and is not drawn, such as one of weight 0, keeps the clients it has.
  const drawn = new Set(endpoints.map(({ key }) => key))
  const kept =
    service.protocol === 'UDP' ? service.servingEndpoints.filter(({ key }) => !drawn.has(key)) : []
  const draw = (service.balance && drawFor[service.balance.used]) ?? 'chance'
  return { id, ...choice, endpoints, draw, affinitySeconds, isRemembered, kept }
}

/**
 * The endpoints of which programs draw one. Those with more weight are in the list several times.
 */
function drawnOf({ balance }: DesiredService, endpoints: readonly Endpoint[]): readonly Endpoint[] {
  if (balance?.used === 'weighted') return weightedPlaces(endpoints)
  if (balance?.used !== 'first') return endpoints
  const first = firstOf(endpoints)
  return first ? [first] : []
}

function externalList(service: DesiredService, internal: TargetList): TargetList | undefined {
  if (!service.externallyAccessible) return undefined
  // S18: calls come from pods and the node. They may use all endpoints, not only local ones.
  const usesAll = service.externalPolicyLocal && service.clusterEndpoints.length > 0
  const choice = choiceOf(usesAll ? 'cluster' : service.external, service)
  const isSame =
    choice.verdict === internal.verdict &&
    haveSameKeys(drawnOf(service, choice.endpoints), internal.endpoints)
  return isSame ? internal : listOf(service, `${service.key} external`, choice)
}

function haveSameKeys(a: readonly Endpoint[], b: readonly Endpoint[]): boolean {
  return a === b || (a.length === b.length && a.every(({ key }, index) => key === b[index]?.key))
}

function nodeAddresses({ node }: DesiredState, localhost: boolean): readonly NodeAddress[] {
  const { addresses, asksForLoopback } = node.nodePorts
  return addresses.flatMap((address) => {
    const ip = parseIp(address)
    if (!ip) return []
    const hostOnly = isLoopback(ip)
    return hostOnly && !(localhost && asksForLoopback) ? [] : [{ address, hostOnly }]
  })
}
