import {
  accounted,
  addressType,
  bytecode,
  connectionState,
  hex,
  markIs,
  markIsNot,
  not,
  notConnectionState,
  rule,
  type Match,
  type Rule,
  type Table,
} from '../../kernel/iptables.js'
import { accounts, chains } from './names.js'
import type { dropReasons } from '../../config/config.js'
import { logTarget } from '../refusal-log.js'
import { podSources } from './port-words.js'
import { bitsOf, isNotLoopback, type IpFamily } from '../../state/ip.js'
import type { ChainRules, DispatchRule } from './service-rules.js'
import type { LocalTraffic } from '../../state/desired-state.js'

/** How the rules recognise a packet of a pod to itself (S24). */
type HairpinTest =
  /** One rule compares source and destination, at the same cost for any number of endpoints. */
  | { readonly by: 'bpf' }
  /** If the kernel has no `bpf` match: one rule for each endpoint of this node. */
  | { readonly by: 'addresses'; readonly addresses: readonly string[] }

export interface FixedContext {
  readonly family: IpFamily
  readonly localTraffic: LocalTraffic
  /** Undefined: node ports answer on every local address. */
  readonly nodePortAddresses: readonly string[] | undefined
  readonly masqueradeBit: number
  readonly randomFully: boolean
  readonly dropsInvalid: boolean
  readonly localhostNodePorts: boolean
  readonly hairpin: HairpinTest
  /** The kernel has nfacct objects, so dropped packets are counted (IT10). */
  readonly counts: boolean
  /** The kernel logs refused and dropped packets to the proxy. */
  readonly logs: boolean
}

/** Rules that do not depend on any Service. */
export interface FixedRules {
  /** Chains that have no rule of a Service. */
  readonly chains: readonly ChainRules[]
  /** The last rules of nat KUBE-SERVICES, which jump to the node ports (IT33). */
  readonly tail: readonly Rule[]
}

export function fixedRules(context: FixedContext): FixedRules {
  const hairpin = hairpinMatches(context)
  return {
    chains: [
      ...(['nat', 'filter', 'mangle'] as const).map((table) => chain(table, chains.canary, [])),
      chain('nat', chains.markMasquerade, [
        rule({ jump: 'MARK', jumpArgs: ['--or-mark', hex(maskOf(context))] }),
      ]),
      ...markNonPods(context),
      chain('nat', chains.postrouting, postrouting(context, hairpin)),
      chain('filter', chains.forward, forward(context, hairpin)),
      ...(context.logs ? loggingChains : []),
    ],
    tail: nodePortJumps(context),
  }
}

/** Only packets that are refused or dropped meet these chains, so other packets cost no more. */
const loggingChains: readonly ChainRules[] = [
  logged(chains.refused, 'REJECT'),
  logged(chains.dropped, 'DROP', 'localPolicy'),
  logged(chains.blocked, 'DROP', 'sourceRange'),
]

function logged(
  name: string,
  jump: 'REJECT' | 'DROP',
  reason?: keyof typeof dropReasons,
): ChainRules {
  return chain('filter', name, [rule(logTarget(reason)), rule({ jump })])
}

/** The chains that all Services share. Each Service adds its own rules. */
export const dispatchChains: readonly Pick<DispatchRule, 'table' | 'chain'>[] = [
  { table: 'nat', chain: chains.services },
  { table: 'nat', chain: chains.nodePorts },
  { table: 'filter', chain: chains.services },
  { table: 'filter', chain: chains.externalServices },
  { table: 'filter', chain: chains.nodePorts },
  { table: 'filter', chain: chains.proxyFirewall },
]

/** A jump from a built-in chain, put at its head (IT04). */
export interface Jump {
  readonly table: Table
  readonly from: string
  readonly to: string
  readonly rule: Rule
}

function jump(table: Table, from: string, to: string, comment: string, onlyNew = false): Jump {
  const matches = onlyNew ? [connectionState('NEW')] : []
  // The comment comes last, as kube-proxy writes it, so that both recognise the rule.
  const text = { name: 'comment', args: ['--comment', comment] }
  const all = comment === '' ? matches : [...matches, text]
  return { table, from, to, rule: rule({ matches: all, jump: to }) }
}

const portals = 'kubernetes service portals'
const external = 'kubernetes externally-visible service portals'
const firewall = 'kubernetes load balancer firewall'

export const jumps: readonly Jump[] = [
  jump('filter', 'INPUT', chains.externalServices, external, true),
  jump('filter', 'FORWARD', chains.externalServices, external, true),
  jump('filter', 'INPUT', chains.nodePorts, 'kubernetes health check service ports'),
  jump('filter', 'FORWARD', chains.services, portals, true),
  jump('filter', 'OUTPUT', chains.services, portals, true),
  jump('filter', 'FORWARD', chains.forward, 'kubernetes forwarding rules'),
  jump('filter', 'INPUT', chains.proxyFirewall, firewall, true),
  jump('filter', 'OUTPUT', chains.proxyFirewall, firewall, true),
  jump('filter', 'FORWARD', chains.proxyFirewall, firewall, true),
  jump('nat', 'OUTPUT', chains.services, portals),
  jump('nat', 'PREROUTING', chains.services, portals),
  jump('nat', 'POSTROUTING', chains.postrouting, 'kubernetes postrouting rules'),
]

/** Jumps to the chain that kubelet uses, too. They are never removed. */
export const kubeletJumps: readonly Jump[] = [
  jump('filter', 'INPUT', chains.kubeletFirewall, ''),
  jump('filter', 'OUTPUT', chains.kubeletFirewall, ''),
]

/** All of them, each with the chain that it is in. */
export const placedJumps = [...jumps, ...kubeletJumps].map(({ table, from, rule: made }) => ({
  ...{ table, chain: from, rule: made },
}))

/** IT11: while route_localnet is on, other machines must not reach 127.0.0.1 (CVE-2020-8558). */
export const localnetGuard: Rule = rule({
  source: not('127.0.0.0/8'),
  destination: '127.0.0.0/8',
  comment: 'block incoming localnet connections',
  matches: [notConnectionState('RELATED', 'ESTABLISHED', 'DNAT')],
  jump: 'DROP',
})

function maskOf({ masqueradeBit }: FixedContext): number {
  return 2 ** masqueradeBit
}

/**
 * With several pod CIDRs no single match means "not a pod". So pods return, and the rest is marked.
 */
function markNonPods(context: FixedContext): ChainRules[] {
  const pods = podSources(context.localTraffic)
  if (pods.length < 2) return []
  const rules = pods.map((from) => rule({ ...from, jump: 'RETURN' }))
  return [chain('nat', chains.markNonPods, [...rules, rule({ jump: chains.markMasquerade })])]
}

/** IT08: masquerades marked packets. Before that, packets of a pod to itself get the mark, too. */
function postrouting(context: FixedContext, hairpin: readonly (readonly Match[])[]): Rule[] {
  const mask = maskOf(context)
  return [
    ...hairpin.map((matches) =>
      rule({
        comment: 'kubernetes service traffic of an endpoint to itself',
        matches,
        jump: chains.markMasquerade,
      }),
    ),
    rule({ matches: [markIsNot(mask)], jump: 'RETURN' }),
    // The mark is removed, because a packet inside a tunnel passes these rules again.
    rule({ jump: 'MARK', jumpArgs: ['--xor-mark', hex(mask)] }),
    rule({
      comment: 'kubernetes service traffic requiring SNAT',
      jump: 'MASQUERADE',
      jumpArgs: context.randomFully ? ['--random-fully'] : [],
    }),
  ]
}

/** The rules of KUBE-FORWARD, in the order of IT09. */
function forward(context: FixedContext, hairpin: readonly (readonly Match[])[]): Rule[] {
  const comment = 'kubernetes forwarding rules'
  return [
    // Conntrack does not translate the addresses of an invalid packet back, so the client would
    // reset the connection (#74839).
    ...(context.dropsInvalid
      ? [rule({ matches: [connectionState('INVALID'), ...counted(context)], jump: 'DROP' })]
      : []),
    rule({ comment, matches: [markIs(maskOf(context))], jump: 'ACCEPT' }),
    rule({
      comment: 'kubernetes forwarding conntrack rule',
      matches: [connectionState('RELATED', 'ESTABLISHED')],
      jump: 'ACCEPT',
    }),
    ...hairpin.map((matches) => rule({ comment, matches, jump: 'ACCEPT' })),
  ]
}

function counted({ counts }: FixedContext): Match[] {
  return counts ? [accounted(accounts.invalidDropped)] : []
}

/**
 * IT33: these rules come last in nat KUBE-SERVICES. Otherwise they hide local external addresses.
 */
function nodePortJumps({ family, nodePortAddresses, localhostNodePorts }: FixedContext): Rule[] {
  const comment = 'kubernetes service nodeports; NOTE: this must be the last rule in this chain'
  const loopback = family === 'IPv4' ? '127.0.0.0/8' : '::1/128'
  const withLoopback = family === 'IPv4' && localhostNodePorts
  if (!nodePortAddresses) {
    return [
      rule({
        ...(withLoopback ? {} : { destination: not(loopback) }),
        comment,
        matches: [addressType('dst', 'LOCAL')],
        jump: chains.nodePorts,
      }),
    ]
  }
  return nodePortAddresses
    .filter((ip) => withLoopback || isNotLoopback(ip))
    .map((ip) =>
      rule({
        destination: `${ip}/${bitsOf(family)}`,
        comment,
        jump: chains.nodePorts,
      }),
    )
}

function hairpinMatches({ family, hairpin }: FixedContext): (readonly Match[])[] {
  const wasDnated = connectionState('DNAT')
  if (hairpin.by === 'bpf') return [[wasDnated, sourceIsDestination(family)]]
  return hairpin.addresses.map((ip) => {
    const range = `${ip}-${ip}`
    // Not -s and -d: with `iprange` the matches have the same order as in the bpf rule.
    return [wasDnated, { name: 'iprange', args: ['--src-range', range, '--dst-range', range] }]
  })
}

const load = 0x20
const toX = 0x07
const jumpIfX = 0x1d
const answer = 0x06

/** Compares the two addresses of the IP header word by word. */
function sourceIsDestination(family: IpFamily): Match {
  const [source, words] = family === 'IPv4' ? [12, 1] : [8, 4]
  const destination = source + words * 4
  const program: [number, number, number, number][] = []
  for (let word = 0; word < words; word++) {
    // If the words differ, this jumps over the other words and the first answer.
    const skip = (words - 1 - word) * 4 + 1
    program.push(
      [load, 0, 0, source + word * 4],
      [toX, 0, 0, 0],
      [load, 0, 0, destination + word * 4],
      [jumpIfX, 0, skip, 0],
    )
  }
  return bytecode([...program, [answer, 0, 0, 65535], [answer, 0, 0, 0]])
}

function chain(table: Table, name: string, rules: readonly Rule[]): ChainRules {
  return { table, chain: name, rules }
}
