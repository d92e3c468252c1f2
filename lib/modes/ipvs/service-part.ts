import type { DesiredService, Endpoint, Verdict } from '../../state/desired-state.js'
import { bitsOf, cidrContains, parseIp, type IpFamily } from '../../state/ip.js'
import {
  nodePortSets,
  schedulerFor,
  schedulerFlagsOf,
  schedulerOption,
  schedulers,
  type SchedulerChoice,
  type SetName,
  weightless,
} from './names.js'
import { firstOf, usedWeights } from '../weighted.js'
import { resourceId, type RealServer, type Resource } from './resource.js'
import type { ServicePart, VirtualServer } from './resource.js'

/** The facts that every part depends on beside its Service. */
export interface PartFacts {
  readonly family: IpFamily
  readonly scheduler: string
  readonly primaryIp: string | undefined
  /** Where node ports answer; never loopback (IP21). */
  readonly nodePortAddresses: readonly string[]
  /** Addresses the node has anyway: a Service that names one does not get it bound again (IP02). */
  readonly ownAddresses: ReadonlySet<string>
  /** The proxy is told of what finds no endpoint. */
  readonly logsRefused: boolean
}

/** Everything one service port asks of the kernel (IP01, IP02, IP10-IP18). */
export function servicePart(service: DesiredService, facts: PartFacts): ServicePart {
  const kind = kindOf(service, facts)
  const protocol = service.protocol.toLowerCase()
  const resources = new Map<string, Resource>()
  const add = (resource: Resource) => resources.set(resourceId(resource), resource)
  const member = (set: SetName, text: string) => add({ kind: 'member', set, member: text })
  const server = (ip: string, port: number, reals: ReadonlyMap<string, RealServer>) => {
    add({ kind: 'server', server: { ...kind, ip, port }, reals })
    const isServed = [...reals.values()].some(({ weight }) => weight > 0)
    if (facts.logsRefused && !isServed) member('KUBE-NO-ENDPOINTS', `${ip},${protocol}:${port}`)
  }
  const bind = (ip: string) => {
    if (facts.ownAddresses.has(ip)) return
    add({ kind: 'address', ip })
    member('KUBE-IPVS-IPS', ip)
  }

  const at = (ip: string) => `${ip},${protocol}:${service.port}`
  const internal = realsFor(service, kind.scheduler, service.internal, service.internalPolicyLocal)
  const external = realsFor(service, kind.scheduler, service.external, service.externalPolicyLocal)

  bind(service.clusterIp)
  server(service.clusterIp, service.port, internal)
  member('KUBE-CLUSTER-IP', at(service.clusterIp))
  for (const ip of service.externalIps) {
    bind(ip)
    server(ip, service.port, external)
    member(service.externalPolicyLocal ? 'KUBE-EXTERNAL-IP-LOCAL' : 'KUBE-EXTERNAL-IP', at(ip))
  }
  for (const ip of service.loadBalancerIps) {
    bind(ip)
    server(ip, service.port, external)
    member('KUBE-LOAD-BALANCER', at(ip))
    if (service.externalPolicyLocal) member('KUBE-LOAD-BALANCER-LOCAL', at(ip))
    for (const [set, text] of sourceRangeMembers(service, facts, ip, at(ip))) member(set, text)
  }
  if (service.nodePort > 0) {
    for (const ip of facts.nodePortAddresses) server(ip, service.nodePort, external)
    for (const [set, text] of nodePortMembers(service, facts)) member(set, text)
  }
  if (service.healthCheckNodePort > 0) {
    member('KUBE-HEALTH-CHECK-NODE-PORT', String(service.healthCheckNodePort))
  }
  for (const { ip, port, isLocal } of service.reachableEndpoints) {
    // Only a pod of this node can meet itself here, and needs masquerading then (S24).
    if (isLocal) member('KUBE-LOOP-BACK', `${ip},${protocol}:${port},${ip}`)
  }
  return { owner: service.key, resources }
}

/**
 * The endpoints behind an address. Where the policy wants local ones and there are none, all are
 * used (IP25): the table of this mode has no way to drop a packet, and pods of this node shall
 * still reach the load balancer's address.
 */
function endpointsFor(
  service: DesiredService,
  verdict: Verdict,
  isLocalPolicy: boolean,
): readonly Endpoint[] {
  if (verdict === 'reject') return []
  if (isLocalPolicy && verdict === 'local') return service.localEndpoints
  if (service.clusterEndpoints.length > 0) return service.clusterEndpoints
  const ready = service.servingEndpoints.filter((endpoint) => endpoint.ready)
  return ready.length > 0 ? ready : service.servingEndpoints
}

/**
 * The endpoints with their weights, and with weight 0 those that are terminating but still serve:
 * they get nothing new and keep what they have, whatever the protocol (E21).
 */
function realsFor(
  service: DesiredService,
  scheduler: string,
  verdict: Verdict,
  isLocalPolicy: boolean,
): ReadonlyMap<string, RealServer> {
  const chosen = endpointsFor(service, verdict, isLocalPolicy)
  const weights = weightsOf(service, chosen)
  const reals = new Map(
    chosen.map(({ key, ip, port }, index) => [key, { ip, port, weight: weights[index] ?? 1 }]),
  )
  if (scheduler === weightless) return reals
  const isLocalOnly = isLocalPolicy && verdict === 'local'
  for (const { key, ip, port, terminating, isLocal } of service.servingEndpoints) {
    if (!terminating || reals.has(key) || (isLocalOnly && !isLocal)) continue
    reals.set(key, { ip, port, weight: 0 })
  }
  return reals
}

/** Without a word of `kube-proxy-ts/balance`, or overruled, the weights are those of the endpoints. */
function weightsOf(service: DesiredService, endpoints: readonly Endpoint[]): readonly number[] {
  const word = ownScheduler(service) === undefined ? service.balance?.used : undefined
  switch (word) {
    case undefined:
      return endpoints.map(({ weight }) => weight)
    case 'weighted':
      return usedWeights(endpoints)
    case 'first': {
      // `fo` takes the largest weight, and no particular one of those that have the same.
      const first = firstOf(endpoints)
      return endpoints.map((each) => (each === first ? 2 : 1))
    }
    default:
      return endpoints.map(() => 1)
  }
}

function kindOf(service: DesiredService, facts: PartFacts): Omit<VirtualServer, 'ip' | 'port'> {
  return {
    family: facts.family,
    protocol: service.protocol,
    ...schedulerOf(service, facts),
    persistenceSeconds: service.affinitySeconds ?? 0,
  }
}

/** The annotation of this mode goes before the one of all modes. */
function schedulerOf(service: DesiredService, facts: PartFacts): SchedulerChoice {
  const own = ownScheduler(service)
  const asked = service.balance ? schedulerFor[service.balance.used] : undefined
  if (own === undefined && asked) return asked
  const scheduler = own ?? facts.scheduler
  return { scheduler, schedulerFlags: schedulerFlagsOf(scheduler) }
}

/** A typing error in an annotation must not cost the Service: unknown names mean the default. */
function ownScheduler({ options }: DesiredService): string | undefined {
  const chosen = options[schedulerOption]
  return chosen !== undefined && schedulers.includes(chosen) ? chosen : undefined
}

function* sourceRangeMembers(
  service: DesiredService,
  { family, primaryIp }: PartFacts,
  ip: string,
  target: string,
): Iterable<readonly [SetName, string]> {
  if (service.sourceRanges.length === 0) return
  yield ['KUBE-LOAD-BALANCER-FW', target]
  const node = primaryIp === undefined ? undefined : parseIp(primaryIp)
  let allowsNode = false
  for (const range of service.sourceRanges) {
    const isSingle = range.prefix === bitsOf(family)
    // ipset prints single addresses without their prefix, and so do we, to compare as text.
    const text = isSingle ? range.text.slice(0, range.text.indexOf('/')) : range.text
    yield ['KUBE-LOAD-BALANCER-SOURCE-CIDR', `${target},${text}`]
    if (node && cidrContains(range, node)) allowsNode = true
  }
  // The node's own packets to an address bound here carry that very address as source (S35).
  if (allowsNode) yield ['KUBE-LOAD-BALANCER-SOURCE-IP', `${target},${ip}`]
}

function* nodePortMembers(
  { protocol, nodePort, externalPolicyLocal }: DesiredService,
  { nodePortAddresses }: PartFacts,
): Iterable<readonly [SetName, string]> {
  if (protocol !== 'SCTP') {
    const [every, local] = nodePortSets[protocol]
    yield [every, String(nodePort)]
    if (externalPolicyLocal) yield [local, String(nodePort)]
    return
  }
  for (const ip of nodePortAddresses) {
    yield ['KUBE-NODE-PORT-SCTP-HASH', `${ip},sctp:${nodePort}`]
    if (externalPolicyLocal) yield ['KUBE-NODE-PORT-LOCAL-SCTP-HASH', `${ip},sctp:${nodePort}`]
  }
}
