import {
  addressType,
  everyNth,
  not,
  randomly,
  remember,
  rule,
  seenRecently,
  sourceIn,
} from '../../kernel/iptables.js'
import { firstOf, inGroups, usedWeights } from '../shares.js'
import { chains, groupChainName, type ServiceChainNames } from './names.js'
import { cidrContains, hostPort, parseIp } from '../../state/ip.js'
import { podSources, type PortWords } from './port-words.js'
import type { Balance } from '../../state/balance.js'
import type { Endpoint } from '../../state/desired-state.js'
import type { Match, Rule } from '../../kernel/iptables.js'

/** The rules of a chain, and the further chains that they lead to. */
interface Balanced {
  readonly rules: readonly Rule[]
  readonly further: ReadonlyMap<string, readonly Rule[]>
}

/** IT21, IT30, IT31: masquerades if needed, then chooses one endpoint. */
export function balanceRules(words: PortWords, list: 'cluster' | 'local'): Balanced {
  const { service } = words
  const first = service.internal === list ? masqueradeClusterIp(words) : []
  const all = withWeights(
    service.balance?.used,
    list === 'cluster' ? service.clusterEndpoints : service.localEndpoints,
  )
  if (service.affinitySeconds !== undefined) {
    const { rules, further } = stickyRules(words, list, all)
    return { rules: [...first, ...rules], further }
  }
  const rules = drawnOf(words, all).map((one) => send(words, ...one))
  return { rules: [...first, ...rules], further: new Map() }
}

/**
 * Sends remembered clients to their endpoints, and draws one for a new client. With more than a few
 * endpoints both are in several chains, so that a change of one endpoint writes few rules.
 */
function stickyRules(
  words: PortWords,
  list: 'cluster' | 'local',
  endpoints: readonly Endpoint[],
): Balanced {
  const { affinitySeconds = 0, portName, protocol, balance } = words.service
  const remembered = (endpoint: Endpoint) =>
    toEndpoint(words, endpoint, [seenRecently(words.endpointChain(endpoint), affinitySeconds)])
  const draws = (of: readonly Endpoint[]) =>
    drawnOf(words, of).map((one) => toEndpoint(words, ...one))
  const groups = [...inGroups(endpoints)]
  if (groups.length === 0) {
    return { rules: [...endpoints.map(remembered), ...draws(endpoints)], further: new Map() }
  }
  const further = new Map<string, readonly Rule[]>()
  const inChain = (group: string, rules: readonly Rule[]) => {
    const jump = groupChainName(portName, protocol, `${list} ${group}`)
    further.set(jump, rules)
    return jump
  }
  const clients = groups.map(([group, members]) =>
    rule({
      ...words.comment('remembered clients'),
      jump: inChain(`clients ${group}`, members.map(remembered)),
    }),
  )
  // Who takes turns or hashes the client needs all endpoints in one chain.
  if (balance?.used === 'round-robin' || balance?.used === 'source-hash') {
    return { rules: [...clients, ...draws(endpoints)], further }
  }
  const drawn = groups.map(([group, members]) => ({
    jump: inChain(`new clients ${group}`, draws(members)),
    weight: members.reduce((sum, { weight }) => sum + weight, 0),
  }))
  const toDrawn = drawnOf(words, drawn).map(([{ jump }, matches]) =>
    rule({ ...words.comment('new clients'), matches, jump }),
  )
  return { rules: [...clients, ...toDrawn], further }
}

/** The endpoints with the weights to use; an endpoint of weight 0 gets no new connection. */
function withWeights(
  word: Balance | undefined,
  endpoints: readonly Endpoint[],
): readonly Endpoint[] {
  const weights = word === 'weighted' ? usedWeights(endpoints) : []
  const first = word === 'first' ? firstOf(endpoints) : undefined
  return endpoints.map((one, index) => {
    const weight = weights[index] ?? (first && one !== first ? 0 : 1)
    return weight === one.weight ? one : { ...one, weight }
  })
}

/** All that get anything, with matches: by chance or as the Service asks. The last takes the rest. */
function drawnOf<T extends { readonly weight: number }>(
  { service, context }: PortWords,
  of: readonly T[],
): readonly (readonly [T, readonly Match[]])[] {
  const word = service.balance?.used
  const all = of.filter(({ weight }) => weight > 0)
  let rest = all.reduce((sum, { weight }) => sum + weight, 0)
  return all.map((one, index) => {
    const left = all.length - index
    const share = one.weight / rest
    rest -= one.weight
    if (left === 1) return [one, []]
    if (word === 'round-robin') return [one, [everyNth(left)]]
    if (word === 'source-hash' && context.hasBpf) {
      return [one, [sourceIn(context.family, { index, count: all.length })]]
    }
    return [one, [randomly(share)]]
  })
}

function masqueradeClusterIp(words: PortWords): Rule[] {
  const { localTraffic, masqueradeAll } = words.context
  const spec = { ...words.at(words.service.clusterIp), ...words.comment('cluster IP') }
  const jump = chains.markMasquerade
  if (masqueradeAll) return [rule({ ...spec, jump })]
  switch (localTraffic.by) {
    case 'none':
      return []
    case 'interface':
      return [rule({ ...spec, inInterface: not(localTraffic.name), jump })]
    case 'interface-prefix':
      return [rule({ ...spec, inInterface: not(`${localTraffic.prefix}+`), jump })]
    case 'cidrs': {
      const [only, ...others] = localTraffic.cidrs
      if (!only) return []
      // A rule can negate one CIDR only, so several need a chain.
      if (others.length > 0) return [rule({ ...spec, jump: chains.markNonPods })]
      return [rule({ ...spec, source: not(only.text), jump })]
    }
  }
}

/** IT27, IT28: traffic from outside is masqueraded, unless only endpoints of this node may answer. */
export function externalRules(words: PortWords, names: ServiceChainNames): Rule[] {
  const { externalPolicyLocal, localEndpoints, clusterEndpoints } = words.service
  const { markMasquerade } = chains
  const comment = (before: string) => words.comment('external destinations', before)
  if (!externalPolicyLocal) {
    return [
      rule({ ...comment('masquerade traffic for'), jump: markMasquerade }),
      rule({ jump: names.cluster }),
    ]
  }
  const rules: Rule[] = []
  if (clusterEndpoints.length > 0) {
    const jump = names.cluster
    for (const from of podSources(words.context.localTraffic)) {
      rules.push(rule({ ...from, ...comment('pod traffic for'), jump }))
    }
    const matches = [addressType('src', 'LOCAL')]
    rules.push(
      rule({ ...comment('masquerade LOCAL traffic for'), matches, jump: markMasquerade }),
      rule({ ...comment('route LOCAL traffic for'), matches, jump }),
    )
  }
  if (localEndpoints.length > 0) rules.push(rule({ jump: names.local }))
  return rules
}

/** IT29: sources that no rule lets through to the external chain are dropped in table filter. */
export function firewallRules(words: PortWords, names: ServiceChainNames): Rule[] {
  const { sourceRanges, loadBalancerIps } = words.service
  const comment = words.comment('loadbalancer IP')
  const jump = names.external
  const rules = sourceRanges.map(({ text }) => rule({ source: text, ...comment, jump }))
  const node = parseIp(words.context.primaryIp ?? '')
  // S35: if the load-balancer address is bound on this node, its own packets have it as source.
  if (node && sourceRanges.some((range) => cidrContains(range, node))) {
    for (const ip of loadBalancerIps)
      rules.push(rule({ source: words.single(ip), ...comment, jump }))
  }
  return rules
}

/** IT32, for session affinity: the `recent` list has the name of the endpoint's chain. */
export function endpointRules(words: PortWords, endpoint: Endpoint): Rule[] {
  return [send(words, endpoint, [remember(words.endpointChain(endpoint))])]
}

function toEndpoint(words: PortWords, endpoint: Endpoint, matches: readonly Match[]): Rule {
  const jump = words.endpointChain(endpoint)
  return rule({ ...words.comment(`-> ${endpoint.key}`), matches, jump })
}

function send(words: PortWords, endpoint: Endpoint, matches: readonly Match[]): Rule {
  return rule({
    protocol: words.protocol,
    ...words.comment(`-> ${endpoint.key}`),
    matches,
    jump: 'DNAT',
    jumpArgs: ['--to-destination', hostPort(endpoint.ip, endpoint.port)],
  })
}
