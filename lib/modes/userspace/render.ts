import { hostPort } from '../../state/ip.js'
import { printable } from '../../state/names.js'
import {
  addressType,
  Batch,
  connectionState,
  rule,
  type Match,
  type RuleSpec,
} from '../../kernel/iptables.js'
import { logTarget } from '../refusal-log.js'
import type { UserspaceSettings } from './settings.js'
import { subChainOf, type PlacedRule } from './portals/sub-chains.js'
import * as names from './names.js'
import {
  checkBindAddress,
  portalsOf,
  userspacePlanner,
  type ServicePlan,
  type UserspacePlan,
} from './plan.js'
import type { EndpointList, PortalRule } from './portals/portal-rules.js'
import type { PlanReader } from '../mode.js'

const { natChains, filterChains } = names

/** The port of each listener of a service port, as text. `render` has names instead of numbers. */
export type ProxyPorts = Partial<Readonly<Record<EndpointList, string>>>

/** The names that `render` uses for ports, which are known only once listeners listen. */
export const symbolicPorts: ProxyPorts = { cluster: 'PROXY-PORT', local: 'PROXY-PORT-LOCAL' }

/** The jumps into our chains. The original puts those with `prepend` first, too (US02-US04). */
export const jumps: readonly (PlacedRule & { readonly prepend: boolean })[] = [
  jump('nat', 'PREROUTING', natChains.portalsContainer, names.portalsComment),
  jump('nat', 'OUTPUT', natChains.portalsHost, names.portalsComment),
  jump('nat', 'PREROUTING', natChains.nodePortContainer, names.nodePortComment),
  jump('nat', 'OUTPUT', natChains.nodePortHost, names.nodePortComment),
  jump('filter', 'INPUT', filterChains.nonLocal, names.nonLocalComment),
  jump('filter', 'INPUT', filterChains.direct, names.directComment),
  jump('filter', 'INPUT', filterChains.refuse, names.refuseComment),
  jump('filter', 'FORWARD', filterChains.refuse, names.refuseComment),
  jump('filter', 'OUTPUT', filterChains.refuse, names.refuseComment),
]

/** Rules that belong to no Service. */
export function fixedRules({ portRange: range, logsRefused }: FixedFacts): readonly PlacedRule[] {
  const redirected: RuleSpec = { matches: [connectionState('DNAT')], jump: 'ACCEPT' }
  const standing = [
    ...[redirected, ...refusal].map(
      (spec) => ({ table: 'filter', chain: filterChains.listener, rule: rule(spec) }) as const,
    ),
    ...turningAway(logsRefused),
  ]
  if (!range) return standing
  return [
    ...standing,
    ...(['tcp', 'udp'] as const).map((protocol) => {
      const matches = [portMatch(protocol, `${range.from}:${range.to}`)]
      const toListener = rule({ protocol, matches, jump: filterChains.listener })
      return { table: 'filter', chain: filterChains.direct, rule: toListener } as const
    }),
  ]
}

type FixedFacts = Pick<UserspaceSettings, 'portRange' | 'logsRefused'>

/** Only what is turned away anyway meets these, so that telling the proxy costs no other packet. */
function turningAway(logsRefused: boolean): readonly PlacedRule[] {
  const ends = [
    [filterChains.refused, undefined, refusal],
    [filterChains.dropped, 'localPolicy', [{ jump: 'DROP' }]],
    [filterChains.blocked, 'sourceRange', [{ jump: 'DROP' }]],
  ] as const
  return ends.flatMap(([chain, reason, specs]) =>
    [...(logsRefused ? [logTarget(reason)] : []), ...specs].map(
      (spec: RuleSpec) => ({ table: 'filter', chain, rule: rule(spec) }) as const,
    ),
  )
}

/** The rules of one service port. */
export function placeRules(rules: readonly PortalRule[], ports: ProxyPorts): PlacedRule[] {
  return rules.flatMap((portal) => {
    const port =
      typeof portal.destinationPort === 'number'
        ? String(portal.destinationPort)
        : ports[portal.destinationPort]
    const target = targetOf(portal.target, ports)
    if (port === undefined || !target) return []
    const { table, chain, destination } = portal
    const subChain = subChainOf(chain, destination, port)
    return [{ table, chain, subChain, rule: ruleOf(portal, port, target) }]
  })
}

function ruleOf(portal: PortalRule, port: string, end: Pick<RuleSpec, 'jump' | 'jumpArgs'>) {
  const { table, chain, destinationPort, condition, isNodePort, target, ...spec } = portal
  const matches = [portMatch(spec.protocol, port)]
  if (condition === 'to local address') matches.push(addressType('dst', 'LOCAL'))
  return rule({ ...spec, matches, ...end })
}

function targetOf(
  target: PortalRule['target'],
  ports: ProxyPorts,
): Pick<RuleSpec, 'jump' | 'jumpArgs'> | undefined {
  if (target.kind === 'accept') return { jump: 'ACCEPT' }
  if (!('list' in target)) return { jump: filterChains[target.kind] }
  const port = ports[target.list]
  if (port === undefined) return undefined
  if (target.kind === 'redirect') return { jump: 'REDIRECT', jumpArgs: ['--to-ports', port] }
  return { jump: 'DNAT', jumpArgs: ['--to-destination', hostPort(target.address, port)] }
}

/** A TCP client understands a reset on every path; ICMP may be filtered or limited on the way. */
const refusal: readonly RuleSpec[] = [
  { protocol: 'tcp', jump: 'REJECT', jumpArgs: ['--reject-with', 'tcp-reset'] },
  { jump: 'REJECT', jumpArgs: [] },
]

function portMatch(protocol: 'tcp' | 'udp', port: string): Match {
  return { name: protocol, args: ['--dport', port] }
}

function jump(table: 'nat' | 'filter', from: string, to: string, comment: string) {
  const matches =
    table === 'filter'
      ? [connectionState('NEW')]
      : comment === names.nodePortComment
        ? [addressType('dst', 'LOCAL')]
        : []
  const prepend = comment !== names.nodePortComment
  return { table, chain: from, prepend, rule: rule({ comment, matches, jump: to }) }
}

/** The whole plan as text for people: listeners first, then the rules that lead to them. */
export function renderPlan(plan: UserspacePlan, settings: FixedFacts): string {
  const services = [...plan.services.values()].sort((a, b) => (a.key < b.key ? -1 : 1))
  const listeners = services.map(renderListeners).join('')
  if (plan.isDirect) return `${listeners}\n`
  const batch = new Batch()
  for (const chain of Object.values(natChains)) batch.chain('nat', chain)
  for (const chain of Object.values(filterChains)) batch.chain('filter', chain)
  const rules = services.flatMap((service) => placeRules(service.rules, symbolicPorts))
  writeAll(batch, [...fixedRules(settings), ...rules])
  return `${listeners}\n${batch.toString()}`
}

/** What changes between two plans, in the same form. */
export function renderPlanChanges(
  plan: UserspacePlan,
  previous: UserspacePlan | undefined,
  settings: FixedFacts,
): string {
  if (!previous) return renderPlan(plan, settings)
  const { added, changed, removed } = plan.services.since(previous.services)
  const batch = new Batch()
  const lines: string[] = []
  const placed = (service?: ServicePlan) => placeRules(service?.rules ?? [], symbolicPorts)
  const change = (before: ServicePlan | undefined, after: ServicePlan | undefined) => {
    if (after) lines.push(renderListeners(after))
    writeDifference(batch, { before: placed(before), after: placed(after) })
  }
  for (const [key, service] of removed) {
    lines.push(`close ${printable(key)}\n`)
    change(service, undefined)
  }
  for (const [, service, before] of changed) change(before, service)
  for (const [, service] of added) change(undefined, service)
  return `${lines.join('')}\n${batch.toString()}`
}

/** Writes these rules of our chains, and the jumps to the chains. */
export function writeAll(batch: Batch, rules: Iterable<PlacedRule>): void {
  for (const { table, chain, prepend, rule } of jumps) {
    if (prepend) batch.prepend(table, chain, rule)
    else batch.append(table, chain, rule)
  }
  for (const { table, chain, rule } of rules) batch.append(table, chain, rule)
}

/** Replaces all rules of a service port, or none, because their order matters. */
export function writeDifference(
  batch: Batch,
  rules: { readonly before: readonly PlacedRule[]; readonly after: readonly PlacedRule[] },
): number {
  const { before, after } = rules
  if (isSame(before, after)) return 0
  for (const { table, chain, rule } of after) batch.append(table, chain, rule)
  for (const { table, chain, rule } of before) batch.delete(table, chain, rule)
  return before.length + after.length
}

function isSame(before: readonly PlacedRule[], after: readonly PlacedRule[]): boolean {
  return (
    before.length === after.length &&
    before.every(
      ({ chain, rule }, index) =>
        chain === after[index]?.chain && rule.text === after[index].rule.text,
    )
  )
}

function renderListeners(service: ServicePlan): string {
  if (service.unsupported !== undefined) {
    return `# ${printable(service.key)}: ${service.unsupported}\n`
  }
  const addresses = service.addresses.map((ip) => `address ${ip} on this machine\n`).join('')
  const listeners = service.listeners
    .map(({ list, spec }) => {
      const port = spec.port === 0 ? symbolicPorts[list] : spec.port
      const affinity = spec.affinityMs === undefined ? '' : `, affinity ${spec.affinityMs / 1000} s`
      const balance = spec.balance ? `, ${spec.balance.word}` : ''
      const weights = new Map(spec.balance?.weights)
      const endpoints =
        spec.endpoints
          .map(({ key }) => (weights.has(key) ? `${key}*${weights.get(key) ?? 1}` : key))
          .join(' ') || 'no endpoints'
      const at = hostPort(spec.address, port ?? '')
      return `listen ${spec.protocol} ${at} for ${printable(spec.service)} (${list}${balance}${affinity}): ${endpoints}\n`
    })
    .join('')
  return addresses + listeners
}

/** Plans and renders without a kernel. */
export function userspaceReader(given: UserspaceSettings): PlanReader<UserspacePlan> {
  const settings = { ...given, portals: portalsOf(given) }
  if (settings.portals !== 'addresses') checkBindAddress(settings.bindAddress)
  return {
    plan: userspacePlanner(settings),
    render: (plan) => renderPlan(plan, settings),
    renderChanges: (plan, previous) => renderPlanChanges(plan, previous, settings),
    parts: ({ services }) => services,
    only: (plan, keys) => ({ ...plan, services: plan.services.pick(keys) }),
  }
}
