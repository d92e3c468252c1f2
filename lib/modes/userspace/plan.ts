import type { DesiredService, DesiredState, Endpoint, NodeView } from '../../state/desired-state.js'
import { hostPort, isLinkLocal, isUnspecified, parseIp, type IpFamily } from '../../state/ip.js'
import { PersistentMap, type Derivation } from '../../state/persistent-map.js'
import type { ModeSettings } from '../mode.js'
import { directPlacesOf, virtualAddressesOf } from './portals/address-plan.js'
import type { ListenerSpec, Target } from './datapath/data-path.js'
import type { ReservedNodePort } from './portals/reserved-node-ports.js'
import {
  portalRulesOf,
  type EndpointList,
  type NodeFacts,
  type PortalRule,
} from './portals/portal-rules.js'

/** What one family of the node should have: listeners, reserved node ports and rules. */
export interface UserspacePlan {
  readonly family: IpFamily
  readonly services: PersistentMap<ServicePlan>
}

export interface ServicePlan {
  /** `DesiredService.key` */
  readonly key: string
  readonly listeners: readonly ListenerPlan[]
  /** Reserved by sockets, so that no other program on the node opens it (US13). */
  readonly nodePort: ReservedNodePort | undefined
  /** Every `ip:port` it answers to by UDP. The kernel remembers where packets to them went. */
  readonly udpFrontends: readonly string[]
  readonly rules: readonly PortalRule[]
  /** Virtual IPs that this machine has to have, where there are no rules. */
  readonly addresses: readonly string[]
  /** Why all of the above is empty; undefined when it is not. */
  readonly unsupported: string | undefined
}

export interface ListenerPlan {
  readonly list: EndpointList
  /** Its `port` is 0, to be chosen when it opens, except for a listener on an address of the Service. */
  readonly spec: ListenerSpec
}

/**
 * Plans a family. A service port has one listener for each endpoint list that its policies need.
 * The rules choose the listener, because only they know how a packet came in.
 */
export class UserspacePlanner {
  readonly #settings: ModeSettings['userspace']
  readonly #direct: ReadonlySet<IpFamily>
  readonly #memories = new Map<IpFamily, Memory>()

  /** `direct`: the families without rules. */
  constructor(
    settings: ModeSettings,
    direct = new Set(settings.userspace.portals === 'addresses' ? ipFamilies : []),
  ) {
    this.#settings = settings.userspace
    this.#direct = direct
  }

  plan(state: DesiredState): UserspacePlan {
    const { family, services } = state
    const facts = factsOf(
      this.#direct.has(family) ? own(state) : state.node,
      family,
      this.#settings,
    )
    let memory = this.#memories.get(family)
    const factsKey = JSON.stringify(facts, (_, value: unknown) =>
      typeof value === 'bigint' ? String(value) : value,
    )
    if (memory?.factsKey !== factsKey) {
      memory = { factsKey, derivation: {}, plan: undefined }
      this.#memories.set(family, memory)
    }
    const planned = services.derive(memory.derivation, (service) =>
      this.#planService(service, family, facts),
    )
    // The same reference means that there is nothing to apply.
    if (memory.plan?.services !== planned) memory.plan = { family, services: planned }
    return memory.plan
  }

  #planService(service: DesiredService, family: IpFamily, facts: NodeFacts): ServicePlan {
    const { key, protocol } = service
    if (protocol === 'SCTP') {
      const unsupported = 'userspace mode proxies TCP and UDP only; SCTP needs another mode'
      return {
        key,
        listeners: [],
        nodePort: undefined,
        udpFrontends: [],
        rules: [],
        addresses: [],
        unsupported,
      }
    }
    if (this.#direct.has(family)) return this.#planDirect(service, protocol, family, facts)
    const lists = endpointListsOf(service)
    const place = protocol === 'UDP' ? onHostIp(facts) : facts
    return {
      key,
      listeners: lists.map((list) => ({
        list,
        spec: this.#listenerSpec(service, protocol, list, {
          // A listener cannot change its address, so each address has its own key.
          key: `${family} ${key} ${list} ${place.listenAddress}`,
          address: place.listenAddress,
          port: 0,
        }),
      })),
      nodePort:
        service.nodePort === 0
          ? undefined
          : { family, protocol, port: service.nodePort, addresses: facts.reserveAddresses },
      udpFrontends: protocol === 'UDP' ? frontendsOf(service, facts) : [],
      rules: portalRulesOf(service, protocol, lists, place),
      addresses: [],
      unsupported: undefined,
    }
  }

  /** Without rules every address has a listener, see address-plan.ts. */
  #planDirect(
    service: DesiredService,
    protocol: 'TCP' | 'UDP',
    family: IpFamily,
    facts: NodeFacts,
  ): ServicePlan {
    const { key } = service
    const places = directPlacesOf(service, facts)
    return {
      key,
      listeners: places.map(({ list, address, port, name }) => ({
        list,
        spec: this.#listenerSpec(service, protocol, list, {
          key: `${family} ${key} ${list} ${name}`,
          address,
          port,
        }),
      })),
      nodePort: undefined,
      udpFrontends: [],
      rules: [],
      addresses: virtualAddressesOf(service),
      unsupported: undefined,
    }
  }

  #listenerSpec(
    service: DesiredService,
    protocol: 'TCP' | 'UDP',
    list: EndpointList,
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
      udpIdleMs: this.#settings.udpIdleTimeoutMs,
    }
  }
}

const ipFamilies: readonly IpFamily[] = ['IPv4', 'IPv6']

interface Memory {
  readonly factsKey: string
  readonly derivation: Derivation<DesiredService, ServicePlan>
  plan: UserspacePlan | undefined
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

function factsOf(node: NodeView, family: IpFamily, settings: ModeSettings['userspace']): NodeFacts {
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
    reserveAddresses: node.nodePorts.matchesAll ? undefined : bindableAddresses,
    localTraffic: node.localTraffic,
    guardsEachPort: settings.portRange === undefined,
  }
}

/** The node without the ClusterIPs that this mode itself may have added to it. */
function own({ node, services }: DesiredState): NodeView {
  const virtual = new Set<string>()
  for (const { clusterIp } of services.values()) virtual.add(clusterIp)
  const addresses = node.nodePorts.addresses.filter((address) => !virtual.has(address))
  return { ...node, nodePorts: { ...node.nodePorts, addresses } }
}

/**
 * UDP sockets listen on the node's main address. For a socket on the wildcard the kernel chooses
 * the source address of replies, and programs on a node with several addresses can get another
 * one than they asked. A node with loopback and link-local addresses only has no main address.
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

/** A link-local address also needs an interface, which sockets here do not name. */
function isScoped(address: string): boolean {
  const ip = parseIp(address)
  return ip?.family === 'IPv6' && isLinkLocal(ip)
}

function targetOf({ key, ip, port }: Endpoint): Target {
  return { key, ip, port }
}
