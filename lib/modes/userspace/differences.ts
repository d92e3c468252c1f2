import { canonicalRule, targetOf, type SavedTable, type WantedRule } from '../../kernel/iptables.js'
import { chainIn, placeId } from '../../kernel/place.js'
import {
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
export interface UserspaceListing {
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
  const differences: Difference[] = []
  const wanted = new Map(
    ourChains.map(([table, chain]) => [placeId(chainIn(table, chain)), [] as WantedRule[]]),
  )
  const want = ({ table, chain, rule: { text } }: PlacedRule, owner: string, item = text) =>
    wanted.get(placeId(chainIn(table, chain)))?.push({ text, owner, item })
  for (const placed of fixed) want(placed, '')
  for (const service of plan.services.values()) {
    const owner = ownerText(service.key)
    const ports = portsInRules(service, saved)
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
    differences.push(...chainDifferences(place, wish, present ?? []))
  }
  for (const { table, chain, rule } of jumps) {
    const target = targetOf(rule.text)
    const present = (saved(table, chain) ?? []).filter((text) => targetOf(text) === target)
    differences.push(...jumpDifferences(chainIn(table, chain), rule.text, present))
  }
  return differences
}

/** The proxy port of each listener: the one that most of its rules name. */
function portsInRules(
  { rules }: ServicePlan,
  saved: (table: string, chain: string) => readonly string[] | undefined,
): ProxyPorts {
  const seen: Record<EndpointList, Map<string, number>> = { cluster: new Map(), local: new Map() }
  // Without endpoints no rule leads to the listener; only its guard names the port.
  const leading = rules.filter(({ target }) => 'list' in target)
  for (const portal of leading.length > 0 ? leading : rules) {
    const list = 'list' in portal.target ? portal.target.list : portal.destinationPort
    if (typeof list === 'number') continue
    for (const { table, chain, rule } of placeRules([portal], { [list]: placeholder })) {
      for (const text of saved(table, chain) ?? []) {
        const port = portIn(canonicalRule(text), canonicalRule(rule.text))
        if (port !== undefined) seen[list].set(port, (seen[list].get(port) ?? 0) + 1)
      }
    }
  }
  const ports: { -readonly [L in EndpointList]?: string } = {}
  for (const list of ['cluster', 'local'] as const) {
    const [most] = [...seen[list]].sort(([, a], [, b]) => b - a)
    if (most) ports[list] = most[0]
  }
  return ports
}

const placeholder = 'PROXY-PORT'

/** What a rule has where the planned one has the placeholder; undefined for any other rule. */
function portIn(found: string, planned: string): string | undefined {
  const [before = '', after = ''] = planned.split(placeholder)
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
