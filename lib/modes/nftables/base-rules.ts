import {
  disjoint,
  type Chain,
  type Field,
  type NftSet,
  type Rule,
  type Statement,
  type Verdict,
} from '../../kernel/nftables/model.js'
import { bitsOf, isNotLoopback, parseCidr, type IpFamily, type Cidr } from '../../state/ip.js'
import { baseChains, chains, endpointMaps, jumps, sets } from './names.js'
import { dropReasons, refusalGroup } from '../../config/config.js'
import type { RulesetPart } from './part.js'
import type { LocalTraffic } from '../../state/desired-state.js'

/** The facts about the node and the settings that rules depend on. */
export interface NodeFacts {
  readonly family: IpFamily
  readonly localTraffic: LocalTraffic
  readonly primaryIp: string | undefined
  /** Undefined: node ports answer on every local address. */
  readonly nodePortAddresses: readonly string[] | undefined
  readonly serviceCidrs: readonly Cidr[]
  readonly masqueradeAll: boolean
  readonly masqueradeMark: number
  /** Rules can hash the address of a client. */
  readonly hasHash: boolean
  /** The kernel logs refused packets to the proxy, which counts them. */
  readonly logsRefused: boolean
}

/** Only packets that are refused or dropped meet this statement, so other packets cost no more. */
const refusalLog = { kind: 'log', group: refusalGroup } as const

export function droppingRule(
  { logsRefused }: NodeFacts,
  reason: keyof typeof dropReasons,
  ...tests: readonly Statement[]
): Rule {
  const log: Statement = { ...refusalLog, prefix: dropReasons[reason] }
  const drop: Statement = { kind: 'verdict', verdict: { to: 'drop' } }
  return verdictRule(...tests, ...(logsRefused ? [log] : []), drop)
}

const destinationFields: readonly Field[] = ['daddr', 'l4proto', 'dport']
const nodePortFields: readonly Field[] = ['l4proto', 'dport']

/** The part of the ruleset that is there without any Service. */
export function basePart(facts: NodeFacts): RulesetPart {
  const addresses = facts.nodePortAddresses
  const present: NftSet[] = [...Object.values(sets), ...Object.values(endpointMaps)]
  return {
    chains: [
      ...baseChains.map(({ name, base }) => ({ name, base, rules: jumpsOf(name) })),
      ...ownChains(facts),
    ],
    sets: addresses ? present : present.filter((set) => set !== sets.nodePortIps),
    elements: (addresses ?? [])
      .filter(isNotLoopback)
      .map((ip) => ({ owner: '', set: sets.nodePortIps, key: [ip] })),
  }
}

export const verdictRule = (...statements: readonly Statement[]): Rule => ({ statements })

export const goTo = (chain: string): Verdict => ({ to: 'goto', chain })

export const jumpTo = (chain: string): Statement => ({
  kind: 'verdict',
  verdict: { to: 'jump', chain },
})

/** Matches packets from pods of this node, or with `not` all others; undefined: not known (R08). */
export function fromPods(
  { localTraffic, family }: NodeFacts,
  { not }: { readonly not: boolean },
): Statement | undefined {
  switch (localTraffic.by) {
    case 'none':
      return undefined
    case 'cidrs': {
      const cidrs = disjoint(localTraffic.cidrs, bitsOf(family))
      return cidrs.length === 0 ? undefined : { kind: 'address', field: 'saddr', not, cidrs }
    }
    case 'interface':
      return { kind: 'interface', not, name: localTraffic.name, prefix: false }
    case 'interface-prefix':
      return { kind: 'interface', not, name: localTraffic.prefix, prefix: true }
  }
}

function jumpsOf(name: string): readonly Rule[] {
  return jumps
    .filter(({ from }) => from === name)
    .map(({ to, onlyNew }) =>
      onlyNew
        ? verdictRule({ kind: 'connection', is: 'new' }, jumpTo(to))
        : verdictRule(jumpTo(to)),
    )
}

function ownChains(facts: NodeFacts): readonly Chain[] {
  const toNodePort = nodePortDestination(facts)
  return [
    {
      name: chains.services,
      rules: [
        ...clusterIpMasquerade(facts),
        verdictRule(lookUp(sets.serviceIps, destinationFields)),
        verdictRule(...toNodePort, lookUp(sets.serviceNodePorts, nodePortFields)),
      ],
    },
    {
      name: chains.serviceEndpointsCheck,
      rules: [verdictRule(lookUp(sets.noEndpointServices, destinationFields))],
    },
    {
      name: chains.nodePortEndpointsCheck,
      rules: [verdictRule(...toNodePort, lookUp(sets.noEndpointNodePorts, nodePortFields))],
    },
    { name: chains.clusterIpsCheck, rules: clusterIpsCheck(facts) },
    {
      name: chains.reject,
      comment: 'helper for @no-endpoint-services / @no-endpoint-nodeports',
      rules: [verdictRule(...(facts.logsRefused ? [refusalLog] : []), { kind: 'reject' })],
    },
    ...(facts.logsRefused
      ? [{ name: chains.drop, rules: [droppingRule(facts, 'localPolicy')] }]
      : []),
    {
      name: chains.firewallCheck,
      rules: [verdictRule(lookUp(sets.firewallIps, destinationFields))],
    },
    {
      name: chains.markForMasquerade,
      rules: [verdictRule({ kind: 'mark-change', by: 'or', bits: facts.masqueradeMark })],
    },
    { name: chains.masquerading, rules: masquerading(facts.masqueradeMark) },
  ]
}

function masquerading(mark: number): readonly Rule[] {
  const isHairpin: Statement = {
    kind: 'member',
    fields: ['saddr', 'daddr', 'l4proto', 'dport'],
    set: sets.hairpinConnections.name,
  }
  return [
    verdictRule(
      { kind: 'mark-test', bits: mark },
      { kind: 'mark-change', by: 'xor', bits: mark },
      { kind: 'masquerade' },
    ),
    verdictRule({ kind: 'connection', is: 'dnat' }, isHairpin, { kind: 'masquerade' }),
  ]
}

/** NF12: traffic from outside the cluster to a ClusterIP must come back through this node. */
function clusterIpMasquerade(facts: NodeFacts): readonly Rule[] {
  const toClusterIp: Statement = { kind: 'member', fields: ['daddr'], set: sets.clusterIps.name }
  if (facts.masqueradeAll) return [verdictRule(toClusterIp, jumpTo(chains.markForMasquerade))]
  const notFromPods = fromPods(facts, { not: true })
  if (!notFromPods) return []
  return [verdictRule(toClusterIp, notFromPods, jumpTo(chains.markForMasquerade))]
}

/** NF10: refuses packets to ports that a ClusterIP does not have, and to unused ClusterIPs. */
function clusterIpsCheck({ serviceCidrs, family }: NodeFacts): readonly Rule[] {
  const rules: Rule[] = [
    {
      statements: [
        { kind: 'member', fields: ['daddr'], set: sets.clusterIps.name },
        { kind: 'reject' },
      ],
      comment: 'Reject traffic to invalid ports of ClusterIPs',
    },
  ]
  const cidrs = disjoint(serviceCidrs, bitsOf(family))
  if (cidrs.length > 0) {
    rules.push({
      statements: [
        { kind: 'address', field: 'daddr', not: false, cidrs },
        { kind: 'verdict', verdict: { to: 'drop' } },
      ],
      comment: 'Drop traffic to unallocated ClusterIPs',
    })
  }
  return rules
}

/** NF06: node ports answer on all local addresses but loopback, or on the chosen ones. */
function nodePortDestination({ family, nodePortAddresses }: NodeFacts): readonly Statement[] {
  if (nodePortAddresses) {
    return [{ kind: 'member', fields: ['daddr'], set: sets.nodePortIps.name }]
  }
  const loopback = parseCidr(family === 'IPv4' ? '127.0.0.0/8' : '::1/128')
  return [
    { kind: 'local', field: 'daddr' },
    { kind: 'address', field: 'daddr', not: true, cidrs: loopback ? [loopback] : [] },
  ]
}

const lookUp = (map: NftSet, fields: readonly Field[]): Statement => ({
  kind: 'verdict-map',
  fields,
  map: map.name,
})
