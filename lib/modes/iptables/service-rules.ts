import {
  addressType,
  destinationPort,
  not,
  randomly,
  remember,
  rule,
  seenRecently,
} from '../../kernel/iptables.js'
import { cidrContains, hostPort, parseIp } from '../../state/ip.js'
import { chains, endpointChainName, serviceChainNames } from './names.js'
import type { DesiredService, Endpoint, NodeView } from '../../state/desired-state.js'
import type { IpFamily } from '../../state/ip.js'
import type { LocalTraffic } from '../../state/local-traffic.js'
import type { Match, Rule, RuleSpec, Table } from '../../kernel/iptables.js'
import type { ServiceChainNames } from './names.js'

/** A chain and all its rules, in order. */
export interface ChainRules {
  readonly table: Table
  readonly chain: string
  readonly rules: readonly Rule[]
}

/** A rule in a chain that all Services share; there its place does not matter. */
export interface DispatchRule {
  readonly table: Table
  readonly chain: string
  readonly rule: Rule
}

/** Everything one service port puts into the kernel. */
export interface ServiceRules {
  readonly key: string
  /** Chains of its own. */
  readonly chains: readonly ChainRules[]
  /** Its rules in shared chains. */
  readonly dispatch: readonly DispatchRule[]
}

/** What besides the Service decides about its rules. */
export interface RuleContext {
  readonly family: IpFamily
  readonly localTraffic: LocalTraffic
  readonly primaryIp: NodeView['primaryIp']
  readonly masqueradeAll: boolean
  /** Off in large clusters, as comments are a third of all bytes (IT42). */
  readonly hasComments: boolean
}

export function serviceRules(service: DesiredService, context: RuleContext): ServiceRules {
  const port = new PortRules(service, context)
  return { key: service.key, chains: port.chains(), dispatch: port.dispatch() }
}

type Proto = 'tcp' | 'udp' | 'sctp'
const protos: Record<DesiredService['protocol'], Proto> = { TCP: 'tcp', UDP: 'udp', SCTP: 'sctp' }

class PortRules {
  readonly #service: DesiredService
  readonly #context: RuleContext
  readonly #names: ServiceChainNames
  readonly #protocol: Proto
  readonly #hasExternalChain: boolean
  readonly #hasFirewallChain: boolean

  constructor(service: DesiredService, context: RuleContext) {
    this.#service = service
    this.#context = context
    this.#names = serviceChainNames(service.portName, service.protocol)
    this.#protocol = protos[service.protocol]
    // S18: with policy Local and nobody here, pods and the node itself still get through.
    this.#hasExternalChain =
      service.externallyAccessible &&
      (service.externalPolicyLocal
        ? service.clusterEndpoints.length + service.localEndpoints.length > 0
        : service.external === 'cluster')
    this.#hasFirewallChain =
      this.#hasExternalChain &&
      service.loadBalancerIps.length > 0 &&
      service.sourceRanges.length > 0
  }

  chains(): ChainRules[] {
    const { clusterEndpoints, localEndpoints, internal, external } = this.#service
    const out: ChainRules[] = []
    const add = (chain: string, rules: readonly Rule[]) => out.push({ table: 'nat', chain, rules })
    const usesCluster =
      internal === 'cluster' || (this.#hasExternalChain && clusterEndpoints.length > 0)
    if (usesCluster)
      add(this.#names.cluster, this.#balance(clusterEndpoints, internal === 'cluster'))
    if (internal === 'local' || external === 'local') {
      add(this.#names.local, this.#balance(localEndpoints, internal === 'local'))
    }
    if (this.#hasExternalChain) add(this.#names.external, this.#externalRules())
    if (this.#hasFirewallChain) add(this.#names.firewall, this.#firewallRules())
    if (this.#service.affinitySeconds !== undefined) {
      const used = new Set(
        [
          ...(usesCluster ? clusterEndpoints : []),
          ...(internal === 'local' || external === 'local' ? localEndpoints : []),
        ].map(({ key }) => key),
      )
      for (const endpoint of this.#service.reachableEndpoints) {
        if (used.has(endpoint.key))
          add(this.#endpointChain(endpoint), [this.#rememberAndSend(endpoint)])
      }
    }
    return out
  }

  dispatch(): DispatchRule[] {
    return [
      ...this.#internalDispatch(),
      ...this.#externalDispatch(),
      ...this.#healthCheckDispatch(),
    ]
  }

  /** IT20: the ClusterIP. */
  #internalDispatch(): DispatchRule[] {
    const { clusterIp, internal } = this.#service
    if (internal === 'cluster' || internal === 'local') {
      const jump = internal === 'cluster' ? this.#names.cluster : this.#names.local
      return [this.#nat(this.#to(clusterIp, 'cluster IP', jump))]
    }
    return [this.#filter(chains.services, this.#refuse(internal, this.#at(clusterIp)))]
  }

  /** IT22-IT24: external addresses, load-balancer addresses, the node port. */
  #externalDispatch(): DispatchRule[] {
    const { externalIps, loadBalancerIps, nodePort, external } = this.#service
    const out: DispatchRule[] = []
    if (this.#hasExternalChain) {
      const { external: chain, firewall } = this.#names
      for (const ip of externalIps) out.push(this.#nat(this.#to(ip, 'external IP', chain)))
      for (const ip of loadBalancerIps) {
        const jump = this.#hasFirewallChain ? firewall : chain
        out.push(this.#nat(this.#to(ip, 'loadbalancer IP', jump)))
        if (!this.#hasFirewallChain) continue
        const comment = this.#comment(`traffic not accepted by ${firewall}`)
        const drop = rule({ ...this.#at(ip), ...comment, jump: 'DROP' })
        out.push(this.#filter(chains.proxyFirewall, drop))
      }
      if (nodePort !== 0) {
        const spec = { ...this.#comment(''), ...this.#port(nodePort), jump: chain }
        out.push({ table: 'nat', chain: chains.nodePorts, rule: rule(spec) })
      }
    }
    if (external === 'reject' || external === 'drop') {
      for (const ip of [...externalIps, ...loadBalancerIps]) {
        out.push(this.#filter(chains.externalServices, this.#refuse(external, this.#at(ip))))
      }
      if (nodePort !== 0) {
        const here = this.#port(nodePort, [addressType('dst', 'LOCAL')])
        out.push(this.#filter(chains.externalServices, this.#refuse(external, here)))
      }
    }
    return out
  }

  /** IT26: the load balancer's probe must get in whatever INPUT says. */
  #healthCheckDispatch(): DispatchRule[] {
    const { healthCheckNodePort } = this.#service
    if (healthCheckNodePort === 0) return []
    const accept = rule({
      protocol: 'tcp',
      ...this.#comment('health check node port'),
      matches: [destinationPort('tcp', healthCheckNodePort)],
      jump: 'ACCEPT',
    })
    return [this.#filter(chains.nodePorts, accept)]
  }

  /** IT21, IT30, IT31: masquerade where asked, then one endpoint by chance. */
  #balance(endpoints: readonly Endpoint[], servesClusterIp: boolean): Rule[] {
    const rules = servesClusterIp ? this.#masqueradeClusterIp() : []
    const { affinitySeconds } = this.#service
    if (affinitySeconds !== undefined) {
      for (const endpoint of endpoints) {
        const chain = this.#endpointChain(endpoint)
        const matches = [seenRecently(chain, affinitySeconds)]
        rules.push(rule({ ...this.#comment(`-> ${endpoint.key}`), matches, jump: chain }))
      }
    }
    for (const [index, endpoint] of endpoints.entries()) {
      const left = endpoints.length - index
      const matches = left > 1 ? [randomly(1 / left)] : []
      rules.push(
        affinitySeconds === undefined
          ? this.#send(endpoint, matches)
          : rule({
              ...this.#comment(`-> ${endpoint.key}`),
              matches,
              jump: this.#endpointChain(endpoint),
            }),
      )
    }
    return rules
  }

  #masqueradeClusterIp(): Rule[] {
    const { localTraffic, masqueradeAll } = this.#context
    const spec = { ...this.#at(this.#service.clusterIp), ...this.#comment('cluster IP') }
    if (masqueradeAll) return [rule({ ...spec, jump: chains.markMasquerade })]
    switch (localTraffic.by) {
      case 'none':
        return []
      case 'interface':
        return [rule({ ...spec, inInterface: not(localTraffic.name), jump: chains.markMasquerade })]
      case 'interface-prefix': {
        const inInterface = not(`${localTraffic.prefix}+`)
        return [rule({ ...spec, inInterface, jump: chains.markMasquerade })]
      }
      case 'cidrs': {
        const [only, ...others] = localTraffic.cidrs
        if (!only) return []
        // A rule negates one CIDR only; several need a chain.
        if (others.length > 0) return [rule({ ...spec, jump: chains.markNonPods })]
        return [rule({ ...spec, source: not(only.text), jump: chains.markMasquerade })]
      }
    }
  }

  /** IT27, IT28: from outside; masqueraded, unless only this node's endpoints may answer. */
  #externalRules(): Rule[] {
    const { externalPolicyLocal, localEndpoints, clusterEndpoints } = this.#service
    const { markMasquerade } = chains
    if (!externalPolicyLocal) {
      return [
        rule({
          ...this.#text('masquerade traffic for', 'external destinations'),
          jump: markMasquerade,
        }),
        rule({ jump: this.#names.cluster }),
      ]
    }
    const rules: Rule[] = []
    if (clusterEndpoints.length > 0) {
      const jump = this.#names.cluster
      const comment = this.#text('pod traffic for', 'external destinations')
      for (const from of podSources(this.#context.localTraffic)) {
        rules.push(rule({ ...from, ...comment, jump }))
      }
      const matches = [addressType('src', 'LOCAL')]
      const masquerade = this.#text('masquerade LOCAL traffic for', 'external destinations')
      const route = this.#text('route LOCAL traffic for', 'external destinations')
      rules.push(
        rule({ ...masquerade, matches, jump: markMasquerade }),
        rule({ ...route, matches, jump }),
      )
    }
    if (localEndpoints.length > 0) rules.push(rule({ jump: this.#names.local }))
    return rules
  }

  /** IT29: whoever no rule lets through to the external chain is dropped in filter. */
  #firewallRules(): Rule[] {
    const { sourceRanges, loadBalancerIps } = this.#service
    const comment = this.#comment('loadbalancer IP')
    const jump = this.#names.external
    const rules = sourceRanges.map(({ text }) => rule({ source: text, ...comment, jump }))
    const node = parseIp(this.#context.primaryIp ?? '')
    // S35: where the VIP is bound on this node, its own packets carry it as their source.
    if (node && sourceRanges.some((range) => cidrContains(range, node))) {
      for (const ip of loadBalancerIps)
        rules.push(rule({ source: this.#single(ip), ...comment, jump }))
    }
    return rules
  }

  #send(endpoint: Endpoint, matches: readonly Match[]): Rule {
    return rule({
      protocol: this.#protocol,
      ...this.#comment(`-> ${endpoint.key}`),
      matches,
      jump: 'DNAT',
      jumpArgs: ['--to-destination', hostPort(endpoint.ip, endpoint.port)],
    })
  }

  #rememberAndSend(endpoint: Endpoint): Rule {
    return this.#send(endpoint, [remember(this.#endpointChain(endpoint))])
  }

  #endpointChain(endpoint: Endpoint): string {
    return endpointChainName(this.#service.portName, this.#service.protocol, endpoint.key)
  }

  #to(ip: string, what: string, jump: string): Rule {
    return rule({ ...this.#at(ip), ...this.#comment(what), jump })
  }

  /** S16, S17, S19. */
  #refuse(verdict: 'reject' | 'drop', spec: RuleSpec): Rule {
    const why = verdict === 'reject' ? 'has no endpoints' : 'has no local endpoints'
    return rule({ ...spec, ...this.#comment(why), jump: verdict === 'reject' ? 'REJECT' : 'DROP' })
  }

  #at(ip: string): RuleSpec {
    return { destination: this.#single(ip), ...this.#port(this.#service.port) }
  }

  #port(port: number, before: readonly Match[] = []): RuleSpec {
    return {
      protocol: this.#protocol,
      matches: [...before, destinationPort(this.#protocol, port)],
    }
  }

  #single(ip: string): string {
    return `${ip}/${this.#context.family === 'IPv4' ? 32 : 128}`
  }

  #comment(what: string): RuleSpec {
    return this.#text('', what)
  }

  #text(before: string, after: string): RuleSpec {
    if (!this.#context.hasComments) return {}
    return { comment: [before, this.#service.portName, after].filter(Boolean).join(' ') }
  }

  #nat(made: Rule): DispatchRule {
    return { table: 'nat', chain: chains.services, rule: made }
  }

  #filter(chain: string, made: Rule): DispatchRule {
    return { table: 'filter', chain, rule: made }
  }
}

/** R07: what a packet from a pod of this node looks like; empty when nothing tells. */
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
