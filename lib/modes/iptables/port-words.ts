import { addressType, destinationPort, type Match, type RuleSpec } from '../../kernel/iptables.js'
import type { DesiredService, NodeView, LocalTraffic } from '../../state/desired-state.js'
import type { IpFamily } from '../../state/ip.js'

/** What decides about the rules of a Service besides the Service itself. */
export interface RuleContext {
  readonly family: IpFamily
  readonly localTraffic: LocalTraffic
  readonly primaryIp: NodeView['primaryIp']
  readonly masqueradeAll: boolean
  /** Off in large clusters, as comments are a third of all bytes (IT42). */
  readonly hasComments: boolean
  /** New connections to node ports on 127.0.0.1 are counted (IT25). */
  readonly countsLocalhost: boolean
  /** Rules can hash the address of a client. */
  readonly hasBpf: boolean
  /** What is refused or dropped goes through chains that log it. */
  readonly logs: boolean
}

const protocols = { TCP: 'tcp', UDP: 'udp', SCTP: 'sctp' } as const

/** The parts of which the rules of one service port are made. */
export class PortWords {
  readonly service: DesiredService
  readonly context: RuleContext
  readonly protocol: 'tcp' | 'udp' | 'sctp'

  constructor(service: DesiredService, context: RuleContext) {
    this.service = service
    this.context = context
    this.protocol = protocols[service.protocol]
  }

  /** The port of the Service at an address. */
  at(ip: string): RuleSpec {
    return { destination: this.single(ip), ...this.toPort(this.service.port) }
  }

  toPort(port: number): RuleSpec {
    return { protocol: this.protocol, matches: [destinationPort(this.protocol, port)] }
  }

  /** A port at any address of this node. */
  toLocalPort(port: number): RuleSpec {
    const matches: Match[] = [addressType('dst', 'LOCAL'), destinationPort(this.protocol, port)]
    return { protocol: this.protocol, matches }
  }

  single(ip: string): string {
    return `${ip}/${this.context.family === 'IPv4' ? 32 : 128}`
  }

  /** `namespace/name:port what`; with `before`, that in front of it. */
  comment(what: string, before = ''): RuleSpec {
    if (!this.context.hasComments) return {}
    return { comment: [before, this.service.portName, what].filter(Boolean).join(' ') }
  }
}

/** R07: how packets from pods of this node are recognised; empty when they cannot be. */
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
