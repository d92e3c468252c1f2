import type { DesiredService, DesiredState, Endpoint, NodeView } from '../../state/desired-state.js'
import { hostPort, isLinkLocal, isUnspecified, parseIp, type IpFamily } from '../../state/ip.js'
import type { Derivation, PersistentMap } from '../../state/persistent-map.js'
import { memoryByFacts } from '../planner-memory.js'
import { directPlacesOf, virtualAddressesOf } from './portals/address-plan.js'
import type { ListenerSpec, Target } from './datapath/datapath.js'
import type { NodePortClaim } from './portals/node-port-claims.js'
import {
  portalRulesOf,
  type EndpointList,
  type NodeFacts,
  type PortalRule,
} from './portals/portal-rules.js'
import type { UserspaceSettings } from './settings.js'

/** What one family of the node should hold: listeners, node-port claims and rules. */
export interface UserspacePlan {
  readonly family: IpFamily
  readonly services: PersistentMap<ServicePlan>
}

export interface ServicePlan {
  /** `DesiredService.key` */
  readonly key: string
  readonly listeners: readonly ListenerPlan[]
  /** Held by sockets so that nobody else on the node takes it (US13). */
  readonly nodePort: NodePortClaim | undefined
  /** `ip:port` of everything it answers to by UDP: the kernel remembers where packets to them went. */
  readonly udpFrontends: readonly string[]
  readonly rules: readonly PortalRule[]
  /** Virtual IPs this machine itself has to have, where there are no rules. */
  readonly addresses: readonly string[]
  /** Why there is nothing of the above. */
  readonly unsupported: string | undefined
}

export interface ListenerPlan {
  readonly list: EndpointList
  /** Its `port` is 0, as who opens it decides, except for a listener on an address of the Service. */
  readonly spec: ListenerSpec
}

/**
 * Plans a family. A service port has one listener for each endpoint list that its policies ask
 * for: the rules know how a packet came in, the listener does not, so the rules choose.
 * `direct` are the families without rules.
 */
export function userspacePlanner(
  settings: UserspaceSettings,
  direct: ReadonlySet<IpFamily> = new Set(settings.portals === 'addresses' ? ipFamilies : []),
): (state: DesiredState) => UserspacePlan {
  const memoryFor = memoryByFacts<Facts, Memory>((facts) => ({
    facts,
    derivation: {},
    plan: undefined,
  }))
  return (state) => {
    const { family, services } = state
    const isDirect = direct.has(family)
    const memory = memoryFor(family, {
      ...factsOf(isDirect ? own(state) : state.node, family, settings),
      family,
      isDirect,
      udpIdleMs: settings.udpIdleTimeoutMs,
    })
    const planned = services.derive(memory.derivation, (each) => planService(each, memory.facts))
    // The same plan again tells whoever applies plans that there is nothing to do.
    if (memory.plan?.services !== planned) memory.plan = { family, services: planned }
    return memory.plan
  }
}

const ipFamilies: readonly IpFamily[] = ['IPv4', 'IPv6']

interface Facts extends NodeFacts {
  readonly family: IpFamily
  /** Without rules: listeners stand on the addresses of Services. */
  readonly isDirect: boolean
  readonly udpIdleMs: number
}

interface Memory {
  readonly facts: Facts
  readonly derivation: Derivation<DesiredService, ServicePlan>
  plan: UserspacePlan | undefined
}

const nothing: Omit<ServicePlan, 'key'> = {
  listeners: [],
  nodePort: undefined,
  udpFrontends: [],
  rules: [],
  addresses: [],
  unsupported: undefined,
}

function planService(service: DesiredService, facts: Facts): ServicePlan {
  const { key, protocol } = service
  if (protocol === 'SCTP') {
    const unsupported = 'userspace mode proxies TCP and UDP only; SCTP needs another mode'
    return { ...nothing, key, unsupported }
  }
  return facts.isDirect
    ? planDirect(service, protocol, facts)
    : planWithRules(service, protocol, facts)
}

function planWithRules(
  service: DesiredService,
  protocol: 'TCP' | 'UDP',
  facts: Facts,
): ServicePlan {
  const { key } = service
  const { family, claimAddresses } = facts
  const lists = endpointListsOf(service)
  const place = protocol === 'UDP' ? onHostIp(facts) : facts
  return {
    ...nothing,
    key,
    listeners: lists.map((list) => ({
      list,
      spec: listenerSpec(service, protocol, list, facts, {
        // A listener cannot move: on another address it is another one.
        key: `${family} ${key} ${list} ${place.listenAddress}`,
        address: place.listenAddress,
        port: 0,
      }),
    })),
    nodePort:
      service.nodePort === 0
        ? undefined
        : { family, protocol, port: service.nodePort, addresses: claimAddresses },
    udpFrontends: protocol === 'UDP' ? frontendsOf(service, facts) : [],
    rules: portalRulesOf(service, protocol, lists, place),
  }
}

/** Without rules: a listener on every address, see address-plan.ts. */
function planDirect(service: DesiredService, protocol: 'TCP' | 'UDP', facts: Facts): ServicePlan {
  const { key } = service
  return {
    ...nothing,
    key,
    listeners: directPlacesOf(service, facts).map(({ list, address, port, name }) => ({
      list,
      spec: listenerSpec(service, protocol, list, facts, {
        key: `${facts.family} ${key} ${list} ${name}`,
        address,
        port,
      }),
    })),
    addresses: virtualAddressesOf(service),
  }
}

function listenerSpec(
  service: DesiredService,
  protocol: 'TCP' | 'UDP',
  list: EndpointList,
  { udpIdleMs }: Facts,
  place: Pick<ListenerSpec, 'key' | 'address' | 'port'>,
): ListenerSpec {
  const endpoints = list === 'cluster' ? service.clusterEndpoints : service.localEndpoints
  const { affinitySeconds } = service
  return {
    ...place,
    service: service.portName,
    protocol,
    endpoints: endpoints.map(targetOf),
    servingKeys: protocol === 'UDP' ? service.servingEndpoints.map(({ key }) => key) : [],
    affinityMs: affinitySeconds === undefined ? undefined : affinitySeconds * 1000,
    udpIdleMs,
  }
}

/**
 * Decided by the policies, not by today's endpoints, so that a Service that loses its last
 * endpoint keeps its listener and its port.
 */
function endpointListsOf(service: DesiredService): readonly EndpointList[] {
  const { internalPolicyLocal, externalPolicyLocal, externallyAccessible } = service
  const lists: EndpointList[] = []
  if (!internalPolicyLocal || externallyAccessible) lists.push('cluster')
  if (internalPolicyLocal || (externalPolicyLocal && externallyAccessible)) lists.push('local')
  return lists
}

function factsOf(node: NodeView, family: IpFamily, settings: UserspaceSettings): NodeFacts {
  const bound = parseIp(settings.bindAddress)
  const bindableAddresses = node.nodePorts.addresses.filter((address) => !isScoped(address))
  const isBound = bound?.family === family && !isUnspecified(bound)
  return {
    listenAddress: isBound ? bound.text : family === 'IPv4' ? '0.0.0.0' : '::',
    listensOnWildcard: !isBound,
    hostIp: node.primaryIp,
    nodePortCidrs: node.nodePorts.matchesAll ? undefined : node.nodePorts.cidrs,
    nodePortAddresses: node.nodePorts.addresses,
    bindableAddresses,
    claimAddresses: node.nodePorts.matchesAll ? undefined : bindableAddresses,
    localTraffic: node.localTraffic,
    guardsEachPort: settings.portRange === undefined,
  }
}

/** The node without the ClusterIPs that this mode itself may have put on one of its devices. */
function own({ node, services }: DesiredState): NodeView {
  const virtual = new Set<string>()
  for (const { clusterIp } of services.values()) virtual.add(clusterIp)
  const addresses = node.nodePorts.addresses.filter((address) => !virtual.has(address))
  return { ...node, nodePorts: { ...node.nodePorts, addresses } }
}

/**
 * The kernel chooses where answers of a wildcard UDP socket come from, and to a program on this
 * node with a second address that is another address than it asked at. So these sockets stand on
 * the node's main address, unless it has none in this family but loopback and link-local ones.
 */
function onHostIp(facts: NodeFacts): NodeFacts {
  const { hostIp, listensOnWildcard } = facts
  if (!listensOnWildcard || hostIp === undefined) return facts
  return { ...facts, listenAddress: hostIp, listensOnWildcard: false }
}

function frontendsOf(service: DesiredService, facts: NodeFacts): readonly string[] {
  const { clusterIp, externalIps, loadBalancerIps, port, nodePort } = service
  const virtual = [clusterIp, ...externalIps, ...loadBalancerIps].map((ip) => hostPort(ip, port))
  if (nodePort === 0) return virtual
  return [...virtual, ...facts.nodePortAddresses.map((ip) => hostPort(ip, nodePort))]
}

/** A link-local address means nothing to a socket that is not told the interface. */
function isScoped(address: string): boolean {
  const ip = parseIp(address)
  return ip?.family === 'IPv6' && isLinkLocal(ip)
}

function targetOf({ key, ip, port }: Endpoint): Target {
  return { key, ip, port }
}
