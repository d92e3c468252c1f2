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
import { drawable, firstOf } from '../shares.js'
import { chains, endpointChainName, type ServiceChainNames } from './names.js'
import { cidrContains, hostPort, parseIp } from '../../state/ip.js'
import { podSources, type PortWords } from './port-words.js'
import type { Endpoint } from '../../state/desired-state.js'
import type { Match, Rule } from '../../kernel/iptables.js'

/** IT21, IT30, IT31: masquerades if needed, then chooses one endpoint. */
export function balanceRules(
  words: PortWords,
  endpoints: readonly Endpoint[],
  servesClusterIp: boolean,
): Rule[] {
  const rules = servesClusterIp ? masqueradeClusterIp(words) : []
  const { affinitySeconds } = words.service
  if (affinitySeconds !== undefined) {
    for (const endpoint of endpoints) {
      const jump = endpointChain(words, endpoint)
      const matches = [seenRecently(jump, affinitySeconds)]
      rules.push(rule({ ...words.comment(`-> ${endpoint.key}`), matches, jump }))
    }
  }
  for (const { endpoint, matches } of drawnOf(words, endpoints)) {
    const comment = words.comment(`-> ${endpoint.key}`)
    rules.push(
      affinitySeconds === undefined
        ? send(words, endpoint, matches)
        : rule({ ...comment, matches, jump: endpointChain(words, endpoint) }),
    )
  }
  return rules
}

interface Drawn {
  readonly endpoint: Endpoint
  /** Choose among the packets that no endpoint before it took. */
  readonly matches: readonly Match[]
}

/** The endpoints with matches: by chance or as the Service asks for. The last takes the rest. */
function drawnOf(
  { service, context }: PortWords,
  endpoints: readonly Endpoint[],
): readonly Drawn[] {
  const word = service.balance?.used
  if (word === 'first') {
    const first = firstOf(endpoints)
    return first ? [{ endpoint: first, matches: [] }] : []
  }
  const weightOf = ({ weight }: Endpoint) => (word === 'weighted' ? weight : 1)
  const all = drawable(endpoints.map((endpoint) => ({ endpoint, weight: weightOf(endpoint) })))
  let rest = all.reduce((sum, { weight }) => sum + weight, 0)
  return all.map(({ endpoint, weight }, index) => {
    const left = all.length - index
    const share = weight / rest
    rest -= weight
    if (left === 1) return { endpoint, matches: [] }
    if (word === 'round-robin') return { endpoint, matches: [everyNth(left)] }
    if (word === 'source-hash' && context.hasBpf) {
      return { endpoint, matches: [sourceIn(context.family, { index, count: all.length })] }
    }
    return { endpoint, matches: [randomly(share)] }
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
  return [send(words, endpoint, [remember(endpointChain(words, endpoint))])]
}

export function endpointChain({ service }: PortWords, endpoint: Endpoint): string {
  return endpointChainName(service.portName, service.protocol, endpoint.key)
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
