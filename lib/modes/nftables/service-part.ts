import { disjoint } from '../../kernel/nftables/model.js'
import type { Chain, NftSet, Rule, Statement, Verdict } from '../../kernel/nftables/model.js'
import type { DesiredService, Verdict as Outcome } from '../../state/desired-state.js'
import { bitsOf, cidrContains, parseIp } from '../../state/ip.js'
import { droppingRule, fromPods, goTo, jumpTo, verdictRule, type NodeFacts } from './base-rules.js'
import { affinityOf, balance, endpointNames, sharedChoice } from './balance.js'
import { chains, l4ProtocolOf, prefixed, serviceBaseName, sets, sharingChain } from './names.js'
import { elementId } from './part.js'
import type { ElementRequest, PlaceTable, RulesetPart, SharedChoice } from './part.js'

/** Names of the chains of one service port; which of them exist depends on its policies. */
type ServiceChains = Readonly<Record<'cluster' | 'local' | 'external' | 'firewall', string>>

/** The chains that packets to a service port go to, by the kind of address they carry. */
interface Entrances {
  readonly clusterIp: string
  readonly external?: string
  readonly firewall?: string
  /** Present if other Services use the chain `clusterIp`, too. */
  readonly shared?: SharedChoice
}

/** Makes everything that one service port puts into the ruleset. */
export function servicePart(service: DesiredService, facts: NodeFacts): RulesetPart {
  const shared = sharedChoice(service)
  if (!shared) return partWithChains(service, facts)
  // The Service gets no own chain, because the kernel looks at all chains in every transaction.
  const { choice } = shared
  const elements = elementsOf(service, facts, {
    clusterIp: sharingChain(choice.protocol),
    shared,
  })
  return { chains: [], sets: [], elements, choice }
}

function partWithChains(service: DesiredService, facts: NodeFacts): RulesetPart {
  const baseName = serviceBaseName(service.name)
  const names: ServiceChains = {
    cluster: prefixed('service', baseName),
    local: prefixed('local', baseName),
    external: prefixed('external', baseName),
    firewall: prefixed('firewall', baseName),
  }
  const external = externalRules(service, facts, names)
  const usesCluster =
    service.internal === 'cluster' || (external.length > 0 && service.clusterEndpoints.length > 0)
  const usesLocal = service.internal === 'local' || service.external === 'local'
  const namesOf = endpointNames(service)
  const affinity = affinityOf(service, { usesCluster, usesLocal }, namesOf)
  const own: Chain[] = [...affinity.chains]
  const tables: PlaceTable[] = []
  const balanced = (list: 'cluster' | 'local') => {
    const hashing = facts.hasHash ? service : withoutHash(service)
    const { rules, chains: further = [], table } = balance(hashing, list, namesOf)
    own.push({ name: names[list], rules }, ...further)
    if (table) tables.push(table)
  }
  if (usesCluster) balanced('cluster')
  if (usesLocal) balanced('local')
  if (external.length > 0) own.push({ name: names.external, rules: external })
  if (isFirewalled(service)) {
    own.push({ name: names.firewall, rules: firewallRules(service, facts) })
  }
  const elements = elementsOf(service, facts, {
    clusterIp: service.internal === 'local' ? names.local : names.cluster,
    ...(external.length > 0 ? { external: names.external } : {}),
    ...(isFirewalled(service) ? { firewall: names.firewall } : {}),
  })
  if (tables.length === 0) return { chains: own, sets: affinity.sets, elements }
  return { chains: own, sets: tables.map(({ set }) => set), elements, tables }
}

function withoutHash(service: DesiredService): DesiredService {
  const used = service.balance?.used
  return used === 'source-hash' || used === 'maglev' ? { ...service, balance: undefined } : service
}

/** NF16: the way of packets that come by node port, external or load-balancer address. */
function externalRules(
  service: DesiredService,
  facts: NodeFacts,
  names: ServiceChains,
): readonly Rule[] {
  if (!service.externallyAccessible) return []
  const toCluster: Statement = { kind: 'verdict', verdict: goTo(names.cluster) }
  const mark = jumpTo(chains.markForMasquerade)
  if (!service.externalPolicyLocal) {
    return service.external === 'cluster' ? [verdictRule(mark), verdictRule(toCluster)] : []
  }
  const rules: Rule[] = []
  if (service.clusterEndpoints.length > 0) {
    // S18: the policy keeps addresses of outside clients. Pods and the node use all endpoints.
    const pods = fromPods(facts, { not: false })
    const node: Statement = { kind: 'local', field: 'saddr' }
    if (pods) rules.push(verdictRule(pods, toCluster))
    rules.push(verdictRule(node, mark), verdictRule(node, toCluster))
  }
  if (service.external === 'local') {
    rules.push(verdictRule({ kind: 'verdict', verdict: goTo(names.local) }))
  }
  return rules
}

/** S12, NF09. Packets that pass go on to the other chains, so the verdict is `return`, not `accept`. */
function firewallRules(service: DesiredService, facts: NodeFacts): readonly Rule[] {
  const cidrs = disjoint(service.sourceRanges, bitsOf(facts.family))
  const node = facts.primaryIp === undefined ? undefined : parseIp(facts.primaryIp)
  const rules: Rule[] = []
  // S35: if the balancer's address is bound on this node, the node's own packets may carry it.
  if (node && cidrs.some((cidr) => cidrContains(cidr, node))) {
    rules.push(
      verdictRule(
        { kind: 'local', field: 'saddr' },
        { kind: 'verdict', verdict: { to: 'return' } },
      ),
    )
  }
  const isOutside: Statement = { kind: 'address', field: 'saddr', not: true, cidrs }
  rules.push(droppingRule(facts, 'sourceRange', isOutside))
  return rules
}

/** The elements of one service port, each place once. */
function elementsOf(
  service: DesiredService,
  facts: NodeFacts,
  { clusterIp, external, firewall, shared }: Entrances,
): readonly ElementRequest[] {
  const { port, nodePort, externalIps, loadBalancerIps } = service
  const protocol = l4ProtocolOf(service.protocol)
  const elements = new Map<string, ElementRequest>()
  // Their verdicts name a chain of the Service. Verdicts of others get its name as comment.
  const named: readonly NftSet[] = shared ? [] : [sets.serviceIps, sets.serviceNodePorts]
  const add = (
    set: NftSet,
    key: ElementRequest['key'],
    verdict?: Verdict,
    rest: Pick<ElementRequest, 'shared'> = {},
  ) => {
    const made: ElementRequest = {
      owner: service.key,
      set,
      key,
      ...rest,
      ...(verdict ? { verdict } : {}),
      ...(verdict && !named.includes(set) ? { comment: service.portName } : {}),
    }
    // One service may list an address twice, say as external and as load-balancer address.
    const id = elementId(made)
    if (!elements.has(id)) elements.set(id, made)
  }
  const refusal = refusalOf(service.external, facts)
  const internal = refusalOf(service.internal, facts)
  const clusterKey = [service.clusterIp, protocol, port]
  add(sets.clusterIps, [service.clusterIp])
  if (internal) add(sets.noEndpointServices, clusterKey, internal)
  else add(sets.serviceIps, clusterKey, goTo(clusterIp), shared && { shared })
  for (const ip of [...externalIps, ...loadBalancerIps]) {
    const key = [ip, protocol, port]
    if (external !== undefined) add(sets.serviceIps, key, goTo(external))
    if (refusal) add(sets.noEndpointServices, key, refusal)
  }
  if (nodePort !== 0) {
    const key = [protocol, nodePort]
    if (external !== undefined) add(sets.serviceNodePorts, key, goTo(external))
    if (refusal) add(sets.noEndpointNodePorts, key, refusal)
  }
  if (firewall !== undefined) {
    for (const ip of loadBalancerIps) add(sets.firewallIps, [ip, protocol, port], goTo(firewall))
  }
  // S24: a pod may reach itself through a Service. Only pods of this node do so in its rules.
  for (const { ip, port: target, isLocal } of service.reachableEndpoints) {
    if (isLocal) add(sets.hairpinConnections, [ip, ip, protocol, target])
  }
  return [...elements.values()]
}

/** NF08: what the filter chains say when the outcome is not an endpoint. */
function refusalOf(outcome: Outcome, { logsRefused }: NodeFacts): Verdict | undefined {
  if (outcome === 'reject') return goTo(chains.reject)
  if (outcome !== 'drop') return undefined
  return logsRefused ? goTo(chains.drop) : { to: 'drop' }
}

const isFirewalled = (service: DesiredService) =>
  service.sourceRanges.length > 0 && service.loadBalancerIps.length > 0
