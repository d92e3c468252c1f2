import { canonicalRule, targetOf, type SavedTable, type WantedRule } from '../../kernel/iptables.js'
import { chainIn, placeId } from '../../kernel/place.js'
import {
  absentRule,
  missingPlace,
  ownerText,
  type Difference,
  chainDifferences,
  jumpDifferences,
  rulesIn,
} from '../difference.js'
import type { ServicePlan, UserspacePlan } from './plan.js'
import type { PlacedRule } from './portals/sub-chains.js'
import type { EndpointList } from './portals/portal-rules.js'
import { ourChains } from './portals/removal.js'
import { jumps, placeRules, symbolicPorts, type ProxyPorts } from './render.js'

/** What the kernel has: rules, and the ports that sockets listen on, as `tcp 40000`. */
interface UserspaceListing {
  readonly tables: readonly SavedTable[]
  readonly listening: ReadonlySet<string>
}

/**
 * Everything that is not as the plan wants. The running proxy chose the proxy ports, so they are
 * read from the rules. All rules of one listener have to name the same port, and a socket has to
 * listen there.
 */
export function userspaceDifferences(
  plan: UserspacePlan,
  fixed: readonly PlacedRule[],
  { tables, listening }: UserspaceListing,
): readonly Difference[] {
  const saved = (table: string, chain: string) => rulesIn(tables, table, chain)
  const canonical = canonicalRules(saved)
  const differences: Difference[] = []
  const wanted = new Map(
    ourChains.map(([table, chain]) => [placeId(chainIn(table, chain)), [] as WantedRule[]]),
  )
  const want = ({ table, chain, rule: { text } }: PlacedRule, owner: string, item = text) =>
    wanted.get(placeId(chainIn(table, chain)))?.push({ text, owner, item })
  for (const placed of fixed) want(placed, '')
  for (const service of plan.services.values()) {
    const owner = ownerText(service.key)
    const ports = portsInRules(service, canonical)
    const planned = placeRules(service.rules, symbolicPorts)
    const seen = placeRules(service.rules, { ...symbolicPorts, ...ports })
    for (const [index, placed] of seen.entries()) want(placed, owner, planned[index]?.rule.text)
    differences.push(...silentListeners(service, ports, listening))
  }
  for (const [table, chain] of ourChains) {
    const place = chainIn(table, chain)
    const present = saved(table, chain)
    if (!present) differences.push(missingPlace(place, ''))
    const wish = { rules: wanted.get(placeId(place)) ?? [], isOrdered: false }
    const seen = [...chainDifferences(place, wish, present ?? [])]
    const standing = fixed.filter((one) => one.table === table && one.chain === chain)
    // A rule of no Service that comes after one of a Service.
    const late = absentRule(
      standing.map(({ rule }) => rule),
      (present ?? []).slice(0, standing.length),
    )
    if (seen.length === 0 && late)
      seen.push({ place, expected: `first: ${late.text}`, found: undefined, owner: '' })
    differences.push(...seen)
  }
  for (const { table, chain, rule } of jumps) {
    const target = targetOf(rule.text)
    const present = (saved(table, chain) ?? []).filter((text) => targetOf(text) === target)
    differences.push(...jumpDifferences(chainIn(table, chain), rule.text, present))
  }
  return differences
}

type RulesOf = (table: string, chain: string) => readonly string[]

/** Keeps the canonical form of each chain, because every service port looks through all of it. */
function canonicalRules(
  saved: (table: string, chain: string) => readonly string[] | undefined,
): RulesOf {
  const chains = new Map<string, readonly string[]>()
  return (table, chain) => {
    const id = placeId(chainIn(table, chain))
    const known = chains.get(id) ?? (saved(table, chain) ?? []).map(canonicalRule)
    chains.set(id, known)
    return known
  }
}

/**
 * The proxy port of each listener: the port that most of its rules name. Without endpoints no rule
 * leads to a listener, and only its guard names its port. The guards of a Service's two listeners
 * differ in the port alone, so a port that the other listener has is not counted.
 */
function portsInRules({ rules }: ServicePlan, canonical: RulesOf): ProxyPorts {
  const leadingTo = (list: EndpointList) =>
    rules.filter(({ target }) => 'list' in target && target.list === list)
  const guardsOf = (list: EndpointList) =>
    rules.filter((portal) => !('list' in portal.target) && portal.destinationPort === list)
  const ports: { -readonly [L in EndpointList]?: string } = {}
  const note = (list: EndpointList, port: string | undefined) => {
    if (port !== undefined) ports[list] = port
  }
  for (const list of endpointLists) note(list, mostNamed(leadingTo(list), list, canonical))
  for (const list of endpointLists) {
    if (leadingTo(list).length > 0) continue
    note(list, mostNamed(guardsOf(list), list, canonical, Object.values(ports)))
  }
  return ports
}

const endpointLists = ['cluster', 'local'] as const

function mostNamed(
  rules: ServicePlan['rules'],
  list: EndpointList,
  canonical: RulesOf,
  others: readonly string[] = [],
): string | undefined {
  const seen = new Map<string, number>()
  for (const { table, chain, rule } of placeRules(rules, { [list]: placeholder })) {
    const [before = '', after = ''] = canonicalRule(rule.text).split(placeholder)
    for (const text of canonical(table, chain)) {
      const port = portIn(text, before, after)
      if (port !== undefined && !others.includes(port)) seen.set(port, (seen.get(port) ?? 0) + 1)
    }
  }
  return [...seen].sort(([, a], [, b]) => b - a)[0]?.[0]
}

const placeholder = 'PROXY-PORT'

/** The port in a saved rule that is otherwise the planned one; undefined for any other rule. */
function portIn(found: string, before: string, after: string): string | undefined {
  if (!found.startsWith(before) || !found.endsWith(after)) return undefined
  const port = found.slice(before.length, found.length - after.length)
  return /^\d+$/.test(port) ? port : undefined
}

/** Rules that lead to a port without a listening socket. */
function silentListeners(
  { key, listeners }: ServicePlan,
  ports: ProxyPorts,
  listening: ReadonlySet<string>,
): readonly Difference[] {
  return listeners.flatMap(({ list, spec }) => {
    const port = ports[list]
    const protocol = spec.protocol.toLowerCase()
    if (port === undefined || listening.has(`${protocol} ${port}`)) return []
    const expected = `somebody listens on ${protocol} port ${port}, where the rules lead`
    const place = { kind: 'listeners', name: '' } as const
    return [{ place, expected, found: undefined, owner: ownerText(key) }]
  })
}
