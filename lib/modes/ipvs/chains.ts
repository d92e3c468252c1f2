import {
  addressType,
  Batch,
  type ChainWish,
  connectionState,
  hex,
  markIs,
  markIsNot,
  not,
  rule,
  type Match,
  type Rule,
  type RuleSpec,
  type Table,
} from '../../kernel/iptables.js'
import type { IpFamily } from '../../state/ip.js'
import { logTarget } from '../refusal-log.js'
import { chains, setNameOf, type SetName } from './names.js'
import type { LocalTraffic } from '../../state/desired-state.js'

export interface ChainFacts {
  readonly family: IpFamily
  readonly localTraffic: LocalTraffic
  readonly masqueradeAll: boolean
  readonly masqueradeMark: number
  readonly dropsInvalid: boolean
  /** What is refused or dropped is logged to the proxy. */
  readonly logsRefused: boolean
}

export interface ChainRule {
  readonly table: Table
  readonly chain: string
  readonly rule: Rule
}

export const jumpComment = 'kubernetes service portals'

export interface Jump extends ChainRule {
  readonly to: string
}

function jump(table: Table, chain: string, to: string): Jump {
  return { table, chain, to, rule: rule({ comment: jumpComment, jump: to }) }
}

/**
 * Where packets enter our chains, from the kernel's own chains, which other programs use, too. The
 * jumps are the first rules of a chain, in this order.
 */
export const jumps: readonly Jump[] = [
  // IPVS takes the node's own packets before the filter table, so this jump is in mangle.
  jump('mangle', 'OUTPUT', chains.outFilter),
  jump('nat', 'PREROUTING', chains.services),
  jump('nat', 'OUTPUT', chains.services),
  jump('nat', 'POSTROUTING', chains.postrouting),
  jump('filter', 'INPUT', chains.nodePort),
  jump('filter', 'INPUT', chains.firewall),
  jump('filter', 'INPUT', chains.shield),
  jump('filter', 'FORWARD', chains.firewall),
  jump('filter', 'FORWARD', chains.forward),
]

/** All our chains. */
export const declared: readonly (readonly [Table, string])[] = [
  ['mangle', chains.outFilter],
  ['mangle', chains.sourceRanges],
  ['nat', chains.services],
  ['nat', chains.refused],
  ['nat', chains.postrouting],
  ['nat', chains.markMasquerade],
  ['nat', chains.nodePort],
  ['nat', chains.loadBalancer],
  ['filter', chains.nodePort],
  ['filter', chains.firewall],
  ['filter', chains.sourceRanges],
  ['filter', chains.shield],
  ['filter', chains.forward],
]

/** The rules. They do not depend on Services, whose addresses are in ipsets (IP09). */
export function chainsOf(facts: ChainFacts): readonly ChainRule[] {
  const rules: ChainRule[] = []
  const to = (table: Table, chain: string) => (spec: RuleSpec) => {
    rules.push({ table, chain, rule: rule(spec) })
  }
  const match = (set: SetName, sides: string): Match => ({
    name: 'set',
    args: ['--match-set', setNameOf(facts.family, set), sides],
  })
  if (facts.logsRefused) writeRefused(to, match)
  writeNat(facts, to, match)
  writeFilter(facts, to, match)
  return rules
}

type To = (table: Table, chain: string) => (spec: RuleSpec) => void
type MatchSet = (set: SetName, sides: string) => Match

/**
 * IPVS refuses what has no endpoint without a word. Only first packets pass nat, which is before it
 * for every client, so connections that are open meet no rule more.
 */
function writeRefused(to: To, match: MatchSet): void {
  const services = to('nat', chains.services)
  services({
    comment: 'Services without endpoints',
    matches: [match('KUBE-NO-ENDPOINTS', 'dst,dst')],
    jump: chains.refused,
  })
  const refused = to('nat', chains.refused)
  // What is in no source range is dropped on its way to IPVS, and told of there.
  for (const source of allowed(match)) refused({ matches: [source], ...logTarget() })
  refused({ matches: [match('KUBE-LOAD-BALANCER-FW', 'dst,dst')], jump: 'RETURN' })
  refused(logTarget())
}

function writeNat(facts: ChainFacts, to: To, match: MatchSet): void {
  const { masqueradeMark: mark, family } = facts
  const services = to('nat', chains.services)
  services({ source: family === 'IPv4' ? '127.0.0.0/8' : '::1/128', jump: 'RETURN' })
  services({
    comment: 'load balancer addresses',
    matches: [match('KUBE-LOAD-BALANCER', 'dst,dst')],
    jump: chains.loadBalancer,
  })
  for (const spec of clusterIpRules(facts, match)) services(spec)
  services({
    comment: 'external addresses are masqueraded, as the answer has to come back here',
    matches: [match('KUBE-EXTERNAL-IP', 'dst,dst')],
    jump: chains.markMasquerade,
  })
  services({ matches: [addressType('dst', 'LOCAL')], jump: chains.nodePort })
  // Later rules must not rewrite packets that IPVS is going to take.
  for (const set of acceptedSets) services({ matches: [match(set, 'dst,dst')], jump: 'ACCEPT' })

  const balancer = to('nat', chains.loadBalancer)
  balancer({ matches: [match('KUBE-LOAD-BALANCER-LOCAL', 'dst,dst')], jump: 'RETURN' })
  balancer({ jump: chains.markMasquerade })

  const nodePort = to('nat', chains.nodePort)
  for (const protocol of ['TCP', 'UDP'] as const) {
    const common = { protocol: protocol.toLowerCase() }
    const local = match(`KUBE-NODE-PORT-LOCAL-${protocol}`, 'dst')
    nodePort({ ...common, matches: [local], jump: 'RETURN' })
    const every = match(`KUBE-NODE-PORT-${protocol}`, 'dst')
    nodePort({ ...common, matches: [every], jump: chains.markMasquerade })
  }
  const localSctp = match('KUBE-NODE-PORT-LOCAL-SCTP-HASH', 'dst,dst')
  nodePort({ protocol: 'sctp', matches: [localSctp], jump: 'RETURN' })
  const sctp = match('KUBE-NODE-PORT-SCTP-HASH', 'dst,dst')
  nodePort({ protocol: 'sctp', matches: [sctp], jump: chains.markMasquerade })

  const markArgs = ['--or-mark', hex(mark)]
  to('nat', chains.markMasquerade)({ jump: 'MARK', jumpArgs: markArgs })

  const postrouting = to('nat', chains.postrouting)
  postrouting({
    comment: 'a pod that reached itself',
    matches: [match('KUBE-LOOP-BACK', 'dst,dst,src')],
    jump: 'MASQUERADE',
  })
  postrouting({ matches: [markIsNot(mark)], jump: 'RETURN' })
  postrouting({ jump: 'MARK', jumpArgs: ['--xor-mark', hex(mark)] })
  postrouting({ jump: 'MASQUERADE', jumpArgs: ['--random-fully'] })
}

const acceptedSets = [
  'KUBE-CLUSTER-IP',
  'KUBE-LOAD-BALANCER',
  'KUBE-EXTERNAL-IP',
  'KUBE-EXTERNAL-IP-LOCAL',
] as const

/** Marks packets to a ClusterIP whose answers would not come back here (IP11). */
function* clusterIpRules(
  { masqueradeAll, localTraffic }: ChainFacts,
  match: MatchSet,
): Iterable<RuleSpec> {
  const toClusterIp = [match('KUBE-CLUSTER-IP', 'dst,dst')]
  const masquerade = {
    comment: 'traffic from outside the cluster to a ClusterIP',
    matches: toClusterIp,
    jump: chains.markMasquerade,
  }
  if (masqueradeAll) {
    yield masquerade
    return
  }
  switch (localTraffic.by) {
    case 'cidrs': {
      const [only, second] = localTraffic.cidrs
      if (only && !second) yield { ...masquerade, source: not(only.text) }
      else {
        for (const { text } of localTraffic.cidrs) {
          yield { source: text, matches: toClusterIp, jump: 'ACCEPT' }
        }
        yield masquerade
      }
      return
    }
    case 'interface':
      yield { ...masquerade, inInterface: not(localTraffic.name) }
      return
    case 'interface-prefix':
      yield { ...masquerade, inInterface: not(`${localTraffic.prefix}+`) }
      return
    case 'none':
      // The node's own packets have the ClusterIP as source, because the address is local.
      yield { ...masquerade, matches: [match('KUBE-CLUSTER-IP', 'src,dst')] }
  }
}

function writeFilter(facts: ChainFacts, to: To, match: MatchSet): void {
  const nodePort = to('filter', chains.nodePort)
  nodePort({
    comment: 'health check node ports',
    protocol: 'tcp',
    matches: [match('KUBE-HEALTH-CHECK-NODE-PORT', 'dst')],
    jump: 'ACCEPT',
  })
  writeSourceRanges(facts, to, match)
  writeShield(facts, to, match)

  const forward = to('filter', chains.forward)
  const mark = facts.masqueradeMark
  if (facts.dropsInvalid) forward({ matches: [connectionState('INVALID')], jump: 'DROP' })
  forward({ matches: [markIs(mark)], jump: 'ACCEPT' })
  forward({ matches: [connectionState('RELATED', 'ESTABLISHED')], jump: 'ACCEPT' })
}

function writeSourceRanges({ logsRefused }: ChainFacts, to: To, match: MatchSet): void {
  for (const [table, from] of [
    ['filter', chains.firewall],
    // The node's own packets (IP23). IPVS takes them before the filter table.
    ['mangle', chains.outFilter],
  ] as const) {
    const guard = to(table, from)
    guard({
      comment: 'load balancers with source ranges',
      matches: [match('KUBE-LOAD-BALANCER-FW', 'dst,dst')],
      jump: chains.sourceRanges,
    })
    const ranges = to(table, chains.sourceRanges)
    for (const source of allowed(match)) ranges({ matches: [source], jump: 'RETURN' })
    if (logsRefused) ranges(logTarget('sourceRange'))
    ranges({ jump: 'DROP' })
  }
}

/** Who may use a load balancer that has source ranges. */
const allowed = (match: MatchSet) => [
  match('KUBE-LOAD-BALANCER-SOURCE-CIDR', 'dst,dst,src'),
  match('KUBE-LOAD-BALANCER-SOURCE-IP', 'dst,dst,src'),
]

/** IP22: clients must not reach the host's own ports through Service addresses. */
function writeShield({ family }: ChainFacts, to: To, match: MatchSet): void {
  const shield = to('filter', chains.shield)
  for (const set of acceptedSets) shield({ matches: [match(set, 'dst,dst')], jump: 'RETURN' })
  shield({
    protocol: 'tcp',
    matches: [match('KUBE-HEALTH-CHECK-NODE-PORT', 'dst')],
    jump: 'RETURN',
  })
  // Service addresses answer a ping in this mode (S31).
  shield({ protocol: family === 'IPv4' ? 'icmp' : 'ipv6-icmp', jump: 'RETURN' })
  shield({
    comment: 'ports of this host are not ports of a Service',
    matches: [connectionState('NEW'), match('KUBE-IPVS-IPS', 'dst')],
    jump: 'REJECT',
  })
}

/** A jump that is not in its chain once, and the rules there that say the same. */
export interface WrongJump extends ChainRule {
  readonly present?: readonly string[]
}

/** All rules as one input of iptables-restore. */
export function chainBatch(rules: readonly ChainRule[], wrong: readonly WrongJump[]): Batch {
  const batch = new Batch()
  for (const [table, chain] of declared) batch.chain(table, chain)
  for (const { table, chain, rule: one } of rules) batch.append(table, chain, one)
  // Each jump is put in front of the chain, so the last one is written first.
  for (const { table, chain, rule: one, present } of wrong.toReversed()) {
    for (const text of present ?? []) batch.deleteSaved(table, chain, text)
    batch.prepend(table, chain, one)
  }
  return batch
}

/** What one of our chains should hold. */
export function wishFor(rules: readonly ChainRule[], table: Table, chain: string): ChainWish {
  const own = rules.filter((one) => one.table === table && one.chain === chain)
  return { rules: own.map(({ rule: { text } }) => ({ text, owner: '' })), isOrdered: true }
}
