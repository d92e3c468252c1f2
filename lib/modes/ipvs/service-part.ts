import { readAnnotation } from '../../state/annotations.js'
import { schedulerAnnotation } from '../../state/known-annotations.js'
import type { DesiredService, Endpoint, Verdict } from '../../state/desired-state.js'
import { bitsOf, cidrContains, parseIp, type IpFamily } from '../../state/ip.js'
import {
  nodePortSets,
  schedulerFor,
  schedulerFlagsOf,
  type SchedulerChoice,
  type SetName,
  weightless,
} from './names.js'
import { weightsFor } from '../shares.js'
import { resourceId, type RealServer, type Resource } from './resource.js'
import type { ServicePart, VirtualServer } from './resource.js'

/** The facts that every part depends on, in addition to its Service. */
export interface PartFacts {
  readonly family: IpFamily
  readonly scheduler: string
  readonly primaryIp: string | undefined
  /** The addresses at which node ports answer; never loopback (IP21). */
  readonly nodePortAddresses: readonly string[]
  /** Addresses that the node has on its own. They are not bound again for a Service (IP02). */
  readonly ownAddresses: ReadonlySet<string>
  /** The proxy is told of what finds no endpoint. */
  readonly logsRefused: boolean
}

/** Everything that one service port needs in the kernel (IP01, IP02, IP10-IP18). */
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
  const internal = realsFor(service, kind.scheduler, service.internal)
  const external = realsFor(service, kind.scheduler, service.external)

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
    // S24: a pod that reaches itself needs masquerading. On this node only its own pods do so.
    if (isLocal) member('KUBE-LOOP-BACK', `${ip},${protocol}:${port},${ip}`)
  }
  return { owner: service.key, resources }
}

/**
 * The endpoints of an address. If the policy wants local endpoints and there are none, all are used
 * (IP25): this mode cannot drop a packet in the IPVS table, and pods of this node should still
 * reach the load balancer's address.
 */
function endpointsFor(service: DesiredService, verdict: Verdict): readonly Endpoint[] {
  if (verdict === 'reject') return []
  if (verdict === 'local') return service.localEndpoints
  if (service.clusterEndpoints.length > 0) return service.clusterEndpoints
  const ready = service.servingEndpoints.filter((endpoint) => endpoint.ready)
  return ready.length > 0 ? ready : service.servingEndpoints
}

/**
 * The endpoints with their weights. Terminating endpoints that still serve have weight 0: they get
 * no new connections and keep those that they have, whatever the protocol (E21).
 */
function realsFor(
  service: DesiredService,
  scheduler: string,
  verdict: Verdict,
): ReadonlyMap<string, RealServer> {
  const chosen = endpointsFor(service, verdict)
  const weights = weightsOf(service, chosen)
  const reals = new Map(
    chosen.map(({ key, ip, port }, index) => [key, { ip, port, weight: weights[index] ?? 1 }]),
  )
  if (scheduler === weightless) return reals
  for (const { key, ip, port, terminating, isLocal } of service.servingEndpoints) {
    if (!terminating || reals.has(key) || (verdict === 'local' && !isLocal)) continue
    reals.set(key, { ip, port, weight: 0 })
  }
  return reals
}

/**
 * Without `kube-proxy-ts/balance`, or with a scheduler of its own, endpoints keep their weights.
 * `fo` takes any server of the largest weight, so with the word `first` only one gets it.
 */
export function weightsOf(
  service: DesiredService,
  endpoints: readonly Endpoint[],
): readonly number[] {
  const { balance } = service
  return balance && ownScheduler(service) === undefined
    ? weightsFor(balance.used, endpoints)
    : endpoints.map(({ weight }) => weight)
}

function kindOf(service: DesiredService, facts: PartFacts): Omit<VirtualServer, 'ip' | 'port'> {
  return {
    family: facts.family,
    protocol: service.protocol,
    ...schedulerOf(service, facts),
    persistenceSeconds: service.affinitySeconds ?? 0,
  }
}

/** The annotation of this mode counts more than the annotation of all modes. */
export function schedulerOf(
  service: DesiredService,
  facts: Pick<PartFacts, 'scheduler'>,
): SchedulerChoice {
  const own = ownScheduler(service)
  const asked = service.balance ? schedulerFor[service.balance.used] : undefined
  if (own === undefined && asked) return asked
  const scheduler = own ?? facts.scheduler
  return { scheduler, schedulerFlags: schedulerFlagsOf(scheduler) }
}

/** Unknown names count as none, so that the Service still works. */
function ownScheduler({ options }: DesiredService): string | undefined {
  return readAnnotation(options, schedulerAnnotation)
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
    // ipset prints single addresses without a prefix. Members are compared as text, so do the same.
    const text = isSingle ? range.text.slice(0, range.text.indexOf('/')) : range.text
    yield ['KUBE-LOAD-BALANCER-SOURCE-CIDR', `${target},${text}`]
    if (node && cidrContains(range, node)) allowsNode = true
  }
  // S35: the node's own packets to an address that is bound here have this address as source.
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
