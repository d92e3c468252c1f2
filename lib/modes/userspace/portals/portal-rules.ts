import type { DesiredService, Verdict, LocalTraffic } from '../../../state/desired-state.js'
import { bitsOf, cidrContains, cidrOf, parseCidr, parseIp, type Cidr } from '../../../state/ip.js'
import { filterChains, natChains, type ChainName } from '../names.js'

/** Which of the two endpoint lists of a service port a listener balances over (S15). */
export type EndpointList = 'cluster' | 'local'

/** The properties of the node that rules depend on. */
export interface NodeFacts {
  readonly listenAddress: string
  readonly listensOnWildcard: boolean
  /** The address at which this node reaches its own wildcard listeners (US08). */
  readonly hostIp: string | undefined
  /** Undefined: node ports answer on every local address. */
  readonly nodePortCidrs: readonly Cidr[] | undefined
  /** The node-port addresses that the node has now. */
  readonly nodePortAddresses: readonly string[]
  /** The node-port addresses that a socket can be bound to. */
  readonly bindableAddresses: readonly string[]
  readonly localTraffic: LocalTraffic
  /** Each listener needs its own rule in filter, as there is no port range. */
  readonly guardsEachPort: boolean
}

/** One rule. It names a listener instead of its port, which is not known before it listens. */
export interface PortalRule {
  readonly table: 'nat' | 'filter'
  readonly chain: ChainName
  readonly comment: string
  readonly protocol: 'tcp' | 'udp'
  readonly source?: string
  readonly inInterface?: string
  readonly destination?: string
  /** A port, or the proxy port of that list. */
  readonly destinationPort: number | EndpointList
  readonly condition?: 'to local address'
  /** The rule is left out while another program holds the node port. */
  readonly isNodePort?: true
  readonly target: PortalTarget
}

type PortalTarget =
  /** Leads to the listener at the address of the interface that the packet came in by. */
  | { readonly kind: 'redirect'; readonly list: EndpointList }
  /** Leads to the listener at `address`; if this is empty, at the packet's destination. */
  | { readonly kind: 'dnat'; readonly address: string; readonly list: EndpointList }
  | { readonly kind: 'accept' }
  /** Leads to the chain of this name. The last three turn the packet away for this reason. */
  | { readonly kind: 'listener' | 'refused' | 'dropped' | 'blocked' }

/** The rules of one service port. They lead to its listeners, or refuse. */
export function portalRulesOf(
  service: DesiredService,
  protocol: 'TCP' | 'UDP',
  lists: readonly EndpointList[],
  facts: NodeFacts,
): readonly PortalRule[] {
  const writer = new RuleWriter(service, protocol, facts)
  writer.clusterIp()
  for (const ip of service.externalIps) writer.externalAddress(ip, [])
  for (const ip of service.loadBalancerIps) writer.externalAddress(ip, service.sourceRanges)
  if (service.nodePort !== 0) writer.nodePort()
  if (service.healthCheckNodePort !== 0) writer.healthCheck()
  if (facts.guardsEachPort) writer.guards(lists)
  return writer.rules
}

/** The sender of a packet, in the terms of a rule. */
interface Sender {
  readonly source?: string
  readonly inInterface?: string
}

class RuleWriter {
  readonly rules: PortalRule[] = []
  readonly #service: DesiredService
  readonly #facts: NodeFacts
  readonly #common: { readonly comment: string; readonly protocol: 'tcp' | 'udp' }

  constructor(service: DesiredService, protocol: 'TCP' | 'UDP', facts: NodeFacts) {
    this.#service = service
    this.#facts = facts
    this.#common = {
      comment: service.portName,
      protocol: protocol === 'TCP' ? 'tcp' : 'udp',
    }
  }

  clusterIp(): void {
    const { clusterIp, port, internal } = this.#service
    const place = { destination: clusterIp, destinationPort: port }
    this.#leadOrRefuse(natChains.portalsContainer, place, internal)
    const list = listOf(internal)
    if (list) this.#nat(natChains.portalsHost, place, list)
  }

  /** An external or load-balancer IP. The latter may be for some sources only (S13). */
  externalAddress(ip: string, ranges: readonly Cidr[]): void {
    const place = { destination: ip, destinationPort: this.#service.port }
    const allowed = this.#allowedSenders(ip, ranges)
    const { external } = this.#service
    const fromNode = listFromInside(this.#service)
    for (const sender of this.#fromPods(allowed)) {
      this.#nat(natChains.portalsContainer, { ...place, ...sender }, 'cluster')
    }
    for (const sender of allowed) {
      const from = { ...place, ...sender }
      this.#leadOrRefuse(natChains.portalsContainer, from, external)
      if (fromNode) this.#nat(natChains.portalsHost, from, fromNode)
    }
    // This does not match allowed packets: the rules above have changed their destination.
    if (ranges.length > 0) this.#refuse(place, { kind: 'blocked' })
  }

  nodePort(): void {
    const { nodePort, external } = this.#service
    const { nodePortCidrs } = this.#facts
    const fromNode = listFromInside(this.#service)
    const places = nodePortCidrs?.map((cidr) => ({ destination: cidr.text })) ?? [{}]
    for (const destination of places) {
      const place = { ...destination, destinationPort: nodePort, isNodePort: true } as const
      for (const sender of this.#fromPods([{}])) {
        this.#nat(natChains.nodePortContainer, { ...place, ...sender }, 'cluster')
      }
      const refused = { ...place, condition: 'to local address' } as const
      this.#leadOrRefuse(natChains.nodePortContainer, place, external, refused)
      if (fromNode) this.#nat(natChains.nodePortHost, place, fromNode)
    }
  }

  /** Lets load balancers ask whether this node has endpoints (S20), even if INPUT drops packets. */
  healthCheck(): void {
    this.#filter(filterChains.nonLocal, {
      protocol: 'tcp',
      comment: `${this.#service.portName} health check node port`,
      destinationPort: this.#service.healthCheckNodePort,
      target: { kind: 'accept' },
    })
  }

  /** Only what was redirected reaches a listener, and that even if INPUT drops packets. */
  guards(lists: readonly EndpointList[]): void {
    for (const list of lists) {
      this.#filter(filterChains.direct, { destinationPort: list, target: { kind: 'listener' } })
    }
  }

  /** Pods of this node, which use all endpoints where outside clients use only local ones (S18). */
  #fromPods(allowed: readonly Sender[]): readonly Sender[] {
    const { externalPolicyLocal, clusterEndpoints } = this.#service
    if (!externalPolicyLocal || clusterEndpoints.length === 0) return []
    const local = this.#facts.localTraffic
    switch (local.by) {
      case 'none':
        return []
      case 'cidrs':
        return allowed.flatMap(({ source }) =>
          local.cidrs.flatMap((cidr) => intersect(source, cidr) ?? []),
        )
      case 'interface':
        return allowed.map((sender) => ({ ...sender, inInterface: local.name }))
      case 'interface-prefix':
        return allowed.map((sender) => ({ ...sender, inInterface: `${local.prefix}+` }))
    }
  }

  #allowedSenders(ip: string, ranges: readonly Cidr[]): readonly Sender[] {
    if (ranges.length === 0) return [{}]
    const hostIp = this.#facts.hostIp === undefined ? undefined : parseIp(this.#facts.hostIp)
    // A packet of this node to one of its own addresses has that address as its source (S35).
    const isNodeAllowed = hostIp && ranges.some((range) => cidrContains(range, hostIp))
    return [
      ...ranges.map(({ text }) => ({ source: text })),
      ...(isNodeAllowed ? [{ source: ip }] : []),
    ]
  }

  #nat(chain: ChainName, place: Place, list: EndpointList): void {
    const target = this.#targetOf(place, list)
    this.rules.push({ table: 'nat', chain, ...this.#common, ...place, target })
  }

  #targetOf({ isNodePort }: Place, list: EndpointList): PortalTarget {
    const { listensOnWildcard, listenAddress, hostIp } = this.#facts
    // A node port keeps the address, so that replies come from the address that was asked.
    const here = isNodePort ? '' : hostIp
    const address = listensOnWildcard ? here : listenAddress
    // A redirection drops packets that come in by an interface without an address, as from pods of
    // Calico. So it is for nodes without a main address.
    return address === undefined ? { kind: 'redirect', list } : { kind: 'dnat', address, list }
  }

  #leadOrRefuse(chain: ChainName, place: Place, verdict: Verdict, refused = place): void {
    const list = listOf(verdict)
    if (list) this.#nat(chain, place, list)
    else this.#refuse(refused, { kind: verdict === 'reject' ? 'refused' : 'dropped' })
  }

  #refuse(place: Place, target: PortalTarget): void {
    this.#filter(filterChains.refuse, { ...place, target })
  }

  #filter(
    chain: ChainName,
    rule: Place & Pick<PortalRule, 'target'> & Partial<Pick<PortalRule, 'protocol' | 'comment'>>,
  ): void {
    this.rules.push({ table: 'filter', chain, ...this.#common, ...rule })
  }
}

type Place = Pick<PortalRule, 'destinationPort'> &
  Partial<Pick<PortalRule, 'destination' | 'condition' | 'source' | 'inInterface' | 'isNodePort'>>

/** Two CIDRs are nested or disjoint: their intersection is the smaller one, or nothing. */
function intersect(source: string | undefined, cidr: Cidr): Sender | undefined {
  if (source === undefined) return { source: cidr.text }
  const ip = parseIp(source)
  const range = ip ? cidrOf(ip, bitsOf(ip.family)) : parseCidr(source)
  if (!range) return undefined
  if (isWithin(range, cidr)) return { source }
  return isWithin(cidr, range) ? { source: cidr.text } : undefined
}

const isWithin = ({ family, text, network, prefix }: Cidr, outer: Cidr) =>
  prefix >= outer.prefix && cidrContains(outer, { family, text, value: network })

/** The list for packets that this node itself sends to an external address (S18). */
export function listFromInside(service: DesiredService): EndpointList | undefined {
  const { external, externalPolicyLocal, clusterEndpoints } = service
  if (externalPolicyLocal && clusterEndpoints.length > 0) return 'cluster'
  return listOf(external)
}

/** Undefined where the verdict is to refuse. */
export function listOf(verdict: Verdict): EndpointList | undefined {
  return verdict === 'cluster' || verdict === 'local' ? verdict : undefined
}
