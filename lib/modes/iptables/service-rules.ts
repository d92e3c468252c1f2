import { accounted, destinationPort, rule } from '../../kernel/iptables.js'
import { accounts, chains, serviceChainNames, type ServiceChainNames } from './names.js'
import { balanceRules, endpointRules, externalRules, firewallRules } from './service-chains.js'
import { PortWords, type RuleContext } from './port-words.js'
import type { DesiredService } from '../../state/desired-state.js'
import type { Rule, RuleSpec, Table } from '../../kernel/iptables.js'

/** A chain and all its rules, in order. */
export interface ChainRules {
  readonly table: Table
  readonly chain: string
  readonly rules: readonly Rule[]
}

/**
 * A rule in a chain that all Services share. Its place among rules of other Services does not
 * matter. The rules of one Service keep their order.
 */
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

/** Equal for equal rules in the same chain. */
export const dispatchId = ({ table, chain, rule: { text } }: DispatchRule) =>
  `${table} ${chain} ${text}`

export function serviceRules(service: DesiredService, context: RuleContext): ServiceRules {
  const port = new PortRules(new PortWords(service, context))
  return { key: service.key, chains: port.chains(), dispatch: port.dispatch() }
}

class PortRules {
  readonly #words: PortWords
  readonly #service: DesiredService
  readonly #names: ServiceChainNames
  readonly #hasExternalChain: boolean
  readonly #hasFirewallChain: boolean

  constructor(words: PortWords) {
    const { service } = words
    this.#words = words
    this.#service = service
    this.#names = serviceChainNames(service.portName, service.protocol)
    // S18: with policy Local and no local endpoint, pods and the node itself use other endpoints.
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
    const words = this.#words
    const out: ChainRules[] = []
    const add = (chain: string, rules: readonly Rule[]) => out.push({ table: 'nat', chain, rules })
    const usesCluster =
      internal === 'cluster' || (this.#hasExternalChain && clusterEndpoints.length > 0)
    const usesLocal = internal === 'local' || external === 'local'
    const balance = (list: 'cluster' | 'local') => {
      const { rules, further } = balanceRules(words, list)
      add(this.#names[list], rules)
      for (const [chain, more] of further) add(chain, more)
    }
    if (usesCluster) balance('cluster')
    if (usesLocal) balance('local')
    if (this.#hasExternalChain) add(this.#names.external, externalRules(words, this.#names))
    if (this.#hasFirewallChain) add(this.#names.firewall, firewallRules(words, this.#names))
    if (this.#service.affinitySeconds !== undefined) {
      const used = new Set(
        [...(usesCluster ? clusterEndpoints : []), ...(usesLocal ? localEndpoints : [])].map(
          ({ key }) => key,
        ),
      )
      for (const endpoint of this.#service.reachableEndpoints) {
        if (used.has(endpoint.key))
          add(words.endpointChain(endpoint), endpointRules(words, endpoint))
      }
    }
    return out
  }

  /**
   * Without equal rules: an address may be both an external IP and one of the load balancer, and of
   * two equal rules the kernel would delete one.
   */
  dispatch(): DispatchRule[] {
    const rules = [
      ...this.#internalDispatch(),
      ...this.#externalDispatch(),
      ...this.#healthCheckDispatch(),
    ]
    return [...new Map(rules.map((one) => [dispatchId(one), one])).values()]
  }

  /** IT20: the ClusterIP. */
  #internalDispatch(): DispatchRule[] {
    const { clusterIp, internal } = this.#service
    if (internal === 'cluster' || internal === 'local') {
      const jump = internal === 'cluster' ? this.#names.cluster : this.#names.local
      return [this.#nat(this.#to(clusterIp, 'cluster IP', jump))]
    }
    return [this.#filter(chains.services, this.#refuse(internal, this.#words.at(clusterIp)))]
  }

  /** IT22-IT24: external addresses, load-balancer addresses, the node port. */
  #externalDispatch(): DispatchRule[] {
    const { externalIps, loadBalancerIps, nodePort, external } = this.#service
    const words = this.#words
    const out: DispatchRule[] = []
    if (this.#hasExternalChain) {
      const { external: chain, firewall } = this.#names
      for (const ip of externalIps) out.push(this.#nat(this.#to(ip, 'external IP', chain)))
      for (const ip of loadBalancerIps) {
        const entry = this.#hasFirewallChain ? firewall : chain
        out.push(this.#nat(this.#to(ip, 'loadbalancer IP', entry)))
        if (!this.#hasFirewallChain) continue
        const comment = words.comment(`traffic not accepted by ${firewall}`)
        const jump = words.context.logs ? chains.blocked : 'DROP'
        out.push(this.#filter(chains.proxyFirewall, rule({ ...words.at(ip), ...comment, jump })))
      }
      if (nodePort !== 0) out.push(...this.#nodePortDispatch(nodePort))
    }
    if (external === 'reject' || external === 'drop') {
      for (const ip of [...externalIps, ...loadBalancerIps]) {
        out.push(this.#filter(chains.externalServices, this.#refuse(external, words.at(ip))))
      }
      if (nodePort !== 0) {
        const here = words.toLocalPort(nodePort)
        out.push(this.#filter(chains.externalServices, this.#refuse(external, here)))
      }
    }
    return out
  }

  /** IT25: connections to 127.0.0.1 are counted and go to the same chain. */
  #nodePortDispatch(nodePort: number): DispatchRule[] {
    const jump = this.#names.external
    const spec = { ...this.#words.comment(''), ...this.#words.toPort(nodePort) }
    const jumps = [rule({ ...spec, jump })]
    if (this.#words.context.countsLocalhost) {
      const matches = [...(spec.matches ?? []), accounted(accounts.localhostNodePorts)]
      jumps.unshift(rule({ ...spec, destination: '127.0.0.0/8', matches, jump }))
    }
    return jumps.map((made) => ({ table: 'nat', chain: chains.nodePorts, rule: made }))
  }

  /** IT26: accepts the load balancer's health check, even where INPUT would drop it. */
  #healthCheckDispatch(): DispatchRule[] {
    const { healthCheckNodePort } = this.#service
    if (healthCheckNodePort === 0) return []
    const accept = rule({
      protocol: 'tcp',
      ...this.#words.comment('health check node port'),
      matches: [destinationPort('tcp', healthCheckNodePort)],
      jump: 'ACCEPT',
    })
    return [this.#filter(chains.nodePorts, accept)]
  }

  #to(ip: string, what: string, jump: string): Rule {
    return rule({ ...this.#words.at(ip), ...this.#words.comment(what), jump })
  }

  /** The rule for packets that get no endpoint (S16, S17, S19). */
  #refuse(verdict: 'reject' | 'drop', spec: RuleSpec): Rule {
    const isReject = verdict === 'reject'
    const comment = this.#words.comment(isReject ? 'has no endpoints' : 'has no local endpoints')
    const plain = isReject ? 'REJECT' : 'DROP'
    const logged = isReject ? chains.refused : chains.dropped
    return rule({ ...spec, ...comment, jump: this.#words.context.logs ? logged : plain })
  }

  #nat(made: Rule): DispatchRule {
    return { table: 'nat', chain: chains.services, rule: made }
  }

  #filter(chain: string, made: Rule): DispatchRule {
    return { table: 'filter', chain, rule: made }
  }
}
