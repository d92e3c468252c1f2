import type { DesiredService, DesiredState, Endpoint, NodeView } from '../../state/desired-state.js'
import {
  hostPort,
  isLinkLocal,
  isLoopback,
  isUnspecified,
  parseIp,
  type IpFamily,
} from '../../state/ip.js'
import { ConfigError } from '../../errors.js'
import { PersistentMap, type Derivation } from '../../state/persistent-map.js'
import type { ModeSettings } from '../mode.js'
import { directPlacesOf, virtualAddressesOf } from './portals/address-plan.js'
import type { ListenerSpec, Target } from './datapath/datapath.js'
import type { NodePortClaim } from './portals/node-port-claims.js'
import { portalRulesOf, type NodeFacts, type PortalRule } from './portals/portal-rules.js'

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

/** Which of the two endpoint lists of a service port a listener balances over (S15). */
export type EndpointList = 'cluster' | 'local'

export interface ListenerPlan {
  readonly list: EndpointList
  /** Its `port` is 0, as who opens it decides, except for a listener on an address of the Service. */
  readonly spec: ListenerSpec
}

/** What other nodes and pods cannot reach cannot be the address of their Services (US30). */
export function checkBindAddress(text: string): void {
  const ip = parseIp(text)
  if (!ip || isLoopback(ip)) {
    throw new ConfigError(
      `bindAddress ${JSON.stringify(text)}: userspace mode cannot proxy on it; use 0.0.0.0 or an address of this node`,
    )
  }
}

/**
 * Plans a family. A service port has one listener for each endpoint list that its policies ask
 * for: the rules know how a packet came in, the listener does not, so the rules choose.
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
    // The same plan again tells whoever applies plans that there is nothing to do.
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
          // A listener cannot move: on another address it is another one.
          key: `${family} ${key} ${list} ${place.listenAddress}`,
          address: place.listenAddress,
          port: 0,
        }),
      })),
      nodePort:
        service.nodePort === 0
          ? undefined
          : { family, protocol, port: service.nodePort, addresses: facts.claimAddresses },
      udpFrontends: protocol === 'UDP' ? frontendsOf(service, facts) : [],
      rules: portalRulesOf(service, protocol, lists, place),
      addresses: [],
      unsupported: undefined,
    }
  }

  /** Without rules: a listener on every address, see address-plan.ts. */
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
