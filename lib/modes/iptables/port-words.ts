import { addressType, destinationPort, type Match, type RuleSpec } from '../../kernel/iptables.js'
import { endpointChainName } from './names.js'
import type { DesiredService, Endpoint, NodeView, LocalTraffic } from '../../state/desired-state.js'
import { bitsOf, type IpFamily } from '../../state/ip.js'

/** What the rules of a Service depend on, in addition to the Service itself. */
export interface RuleContext {
  readonly family: IpFamily
  readonly localTraffic: LocalTraffic
  readonly primaryIp: NodeView['primaryIp']
  readonly masqueradeAll: boolean
  /** False in large clusters, because comments are a third of all bytes (IT42). */
  readonly hasComments: boolean
  /** New connections to node ports on 127.0.0.1 are counted (IT25). */
  readonly countsLocalhost: boolean
  /** Rules can hash the address of a client. */
  readonly hasBpf: boolean
  /** Refused and dropped packets go through chains that log them. */
  readonly logs: boolean
}

const protocols = { TCP: 'tcp', UDP: 'udp', SCTP: 'sctp' } as const

/** Makes the parts of the rules of one service port. */
export class PortWords {
  readonly service: DesiredService
  readonly context: RuleContext
  readonly protocol: 'tcp' | 'udp' | 'sctp'
  readonly #endpointChains = new Map<string, string>()

  constructor(service: DesiredService, context: RuleContext) {
    this.service = service
    this.context = context
    this.protocol = protocols[service.protocol]
  }

  /** The chain of an endpoint. Each name is made once, because it contains a hash. */
  endpointChain({ key }: Endpoint): string {
    const known = this.#endpointChains.get(key)
    if (known !== undefined) return known
    const made = endpointChainName(this.service.portName, this.service.protocol, key)
    this.#endpointChains.set(key, made)
    return made
  }

  /** Matches the port of the Service at an address. */
  at(ip: string): RuleSpec {
    return { destination: this.single(ip), ...this.toPort(this.service.port) }
  }

  toPort(port: number): RuleSpec {
    return { protocol: this.protocol, matches: [destinationPort(this.protocol, port)] }
  }

  /** Matches a port at any address of this node. */
  toLocalPort(port: number): RuleSpec {
    const matches: Match[] = [addressType('dst', 'LOCAL'), destinationPort(this.protocol, port)]
    return { protocol: this.protocol, matches }
  }

  single(ip: string): string {
    return `${ip}/${bitsOf(this.context.family)}`
  }

  /** The comment `before namespace/name:port what`. */
  comment(what: string, before = ''): RuleSpec {
    if (!this.context.hasComments) return {}
    return { comment: [before, this.service.portName, what].filter(Boolean).join(' ') }
  }
}

/** R07: matches for packets from pods of this node; empty if they cannot be recognised. */
export function podSources(localTraffic: LocalTraffic): readonly RuleSpec[] {
  switch (localTraffic.by) {
    case 'none':
      return []
    case 'interface':
      return [{ inInterface: localTraffic.name }]
    case 'interface-prefix':
      return [{ inInterface: `${localTraffic.prefix}+` }]
    case 'cidrs':
      return localTraffic.cidrs.map(({ text }) => ({ source: text }))
  }
}
