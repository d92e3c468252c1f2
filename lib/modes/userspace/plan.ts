import type { DesiredService, DesiredState, NodeView } from '../../state/desired-state.js'
import { ConfigError } from '../../errors.js'
import {
  hostPort,
  ipFamilies,
  isLinkLocal,
  isLoopback,
  isScoped,
  isUnspecified,
  parseIp,
  type IpFamily,
} from '../../state/ip.js'
import type { Derivation, PersistentMap } from '../../state/persistent-map.js'
import { memoryByFacts } from '../planner-memory.js'
import { listenerSpec, type ListenerFacts } from './listener-spec.js'
import { directPlacesOf, virtualAddressesOf } from './portals/address-plan.js'
import type { ListenerSpec } from './datapath/data-path.js'
import type { ReservedNodePort } from './portals/reserved-node-ports.js'
import {
  portalRulesOf,
  type EndpointList,
  type NodeFacts,
  type PortalRule,
} from './portals/portal-rules.js'
import type { UserspaceSettings } from './settings.js'

/** What one family of the node should have: listeners, reserved node ports and rules. */
export interface UserspacePlan {
  readonly family: IpFamily
  /** There are no rules: listeners listen at the addresses of Services. */
  readonly isDirect: boolean
  readonly services: PersistentMap<ServicePlan>
  /** A node port answers at all of them, also for a loop. */
  readonly localAddresses: readonly string[]
}

export interface ServicePlan {
  /** `DesiredService.key` */
  readonly key: string
  readonly listeners: readonly ListenerPlan[]
  /** Reserved by sockets, so that no other program on the node opens it (US13). */
  readonly nodePort: ReservedNodePort | undefined
  /** Each `ip:port` where it answers to UDP. The kernel remembers where packets to it went. */
  readonly udpFrontends: readonly string[]
  readonly rules: readonly PortalRule[]
  /** Virtual IPs that this machine needs where there are no rules. */
  readonly addresses: readonly string[]
  /** Why this mode cannot serve it, and everything above is empty; undefined when it can. */
  readonly unsupported: string | undefined
}

export interface ListenerPlan {
  readonly list: EndpointList
  /** Its `port` is 0 with rules: then the port is chosen when the listener opens. */
  readonly spec: ListenerSpec
}

/**
 * Plans a family. A service port has one listener for each endpoint list that its policies need.
 * The rules choose the listener, because only they know how a packet came in. `direct` are the
 * families without rules.
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
      sourceAddress: settings.sourceAddress,
      masqueradesAll: settings.masqueradesAll,
    })
    const planned = services.derive(memory.derivation, (each) => planService(each, memory.facts))
    // The same reference means that there is nothing to apply.
    const { localAddresses } = state.node
    if (memory.plan?.services !== planned || memory.plan.localAddresses !== localAddresses) {
      memory.plan = { family, isDirect, services: planned, localAddresses }
    }
    return memory.plan
  }
}

interface Facts extends NodeFacts, ListenerFacts {
  readonly family: IpFamily
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
  const { family, nodePortCidrs, bindableAddresses } = facts
  const addresses = nodePortCidrs && bindableAddresses
  const lists = endpointListsOf(service)
  const place = protocol === 'UDP' ? onHostIp(facts) : facts
  return {
    ...nothing,
    key,
    listeners: lists.map((list) => ({
      list,
      spec: listenerSpec(service, protocol, list, facts, {
        // A listener cannot change its address, so each address has its own key.
        key: `${family} ${key} ${list} ${place.listenAddress}`,
        address: place.listenAddress,
        port: 0,
      }),
    })),
    nodePort:
      service.nodePort === 0 ? undefined : { family, protocol, port: service.nodePort, addresses },
    udpFrontends: protocol === 'UDP' ? frontendsOf(service, facts) : [],
    rules: portalRulesOf(service, protocol, lists, place),
  }
}

/** The plan for a node without rules: a listener on every address, see address-plan.ts. */
function planDirect(service: DesiredService, protocol: 'TCP' | 'UDP', facts: Facts): ServicePlan {
  const { key } = service
  return {
    ...nothing,
    key,
    listeners: directPlacesOf(service, facts).map(({ list, address, port }) => ({
      list,
      spec: listenerSpec(service, protocol, list, facts, {
        key: `${facts.family} ${key} ${list} ${hostPort(address, port)}`,
        address,
        port,
      }),
    })),
    addresses: virtualAddressesOf(service),
  }
}

/**
 * The lists depend on the policies, not on current endpoints. A Service that loses its last
 * endpoint therefore keeps its listener and its port.
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
  // Sockets here do not name the device of an address.
  const bindableAddresses = node.nodePorts.addresses.filter((address) => !isScoped(address))
  const isBound = bound?.family === family && !isUnspecified(bound)
  return {
    listenAddress: isBound ? bound.text : family === 'IPv4' ? '0.0.0.0' : '::',
    listensOnWildcard: !isBound,
    hostIp: hostIpOf(node),
    nodePortCidrs: node.nodePorts.matchesAll ? undefined : node.nodePorts.cidrs,
    nodePortAddresses: node.nodePorts.addresses,
    bindableAddresses,
    localTraffic: node.localTraffic,
    guardsEachPort: settings.portRange === undefined,
  }
}

/**
 * The address at which this node reaches its own listeners. The address of the Node object is not
 * always on an interface: it may be gone already, or not yet there.
 */
function hostIpOf({ primaryIp, localAddresses }: NodeView): string | undefined {
  if (primaryIp === undefined || localAddresses.includes(primaryIp)) return primaryIp
  return localAddresses.find((text) => {
    const ip = parseIp(text)
    return ip !== undefined && !isLoopback(ip) && !isLinkLocal(ip)
  })
}

/**
 * The node without the ClusterIPs that this mode itself may have added to `lo`, or on Windows.
 * External IPs stay, because they may be addresses that the node has anyway.
 */
function own({ node, services }: DesiredState): NodeView {
  const virtual = new Set<string>()
  for (const { clusterIp } of services.values()) virtual.add(clusterIp)
  const own = (list: readonly string[]) => list.filter((address) => !virtual.has(address))
  return {
    ...node,
    localAddresses: own(node.localAddresses),
    nodePorts: { ...node.nodePorts, addresses: own(node.nodePorts.addresses) },
  }
}

/**
 * UDP sockets listen on the node's main address. For a socket on the wildcard the kernel chooses
 * the source address of replies, and on a node with several addresses a program may get a reply
 * from another address than it asked. A node with only loopback and link-local addresses has no
 * main address.
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

/** A proxy that runs on a loopback address has no rules, so this needs no look at the node. */
export function portalsOf({
  portals,
  bindAddress,
}: Pick<UserspaceSettings, 'portals' | 'bindAddress'>): UserspaceSettings['portals'] {
  return portals === 'auto' && isOwnOnly(bindAddress) ? 'addresses' : portals
}

/** Other nodes and pods cannot reach listeners on a loopback address (US30). */
export function checkBindAddress(text: string): void {
  if (isOwnOnly(text)) {
    throw new ConfigError(
      `bindAddress ${JSON.stringify(text)}: userspace mode cannot proxy on it; use 0.0.0.0 or an address of this node`,
    )
  }
}

function isOwnOnly(address: string): boolean {
  const ip = parseIp(address)
  return !ip || isLoopback(ip)
}
