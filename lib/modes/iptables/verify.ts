import { chains } from './names.js'
import { dispatchChains, jumps, kubeletJumps } from './fixed-rules.js'
import { targetOf } from './full-sync.js'
import type { ChainRules, ServiceRules } from './service-rules.js'
import type { Content } from './render.js'
import type { Found } from './full-sync.js'
import type { PersistentMap } from '../../state/persistent-map.js'

/** What was seen of a chain at an earlier check, for the rules it then held. */
interface Seen {
  readonly rules: ChainRules['rules']
  readonly hash: number
}

/** What earlier checks saw; belongs to one family. */
export type Baseline = Map<string, Seen>

export interface Comparison {
  readonly found: Found
  readonly usesLocalnet: boolean
  /** What was in force when the listing began, and when it ended; only what is the same counts. */
  readonly before: Content
  readonly after: Content
  readonly baseline: Baseline
}

/**
 * Says what in the kernel is not as we left it, or undefined. The tools print rules in words of
 * their own, so rules are counted chain by chain, and a chain counts as edited when it reads
 * differently from how it read at an earlier check.
 */
export function foreignChange(comparison: Comparison): string | undefined {
  const { found, usesLocalnet, before, after } = comparison
  const wanted = usesLocalnet ? [...jumps, ...kubeletJumps] : jumps
  for (const { table, from, to } of wanted) {
    const rules = found.get(table)?.get(from)?.rules ?? []
    if (!rules.some((saved) => targetOf(saved) === to)) return `no jump ${table} ${from} to ${to}`
  }
  if (before.fixed === after.fixed) {
    for (const one of after.fixed.chains) {
      const change = chainChange(one, comparison)
      if (change !== undefined) return change
    }
  }
  if (before.services === after.services && before.fixed === after.fixed) {
    const change = dispatchChange(comparison)
    if (change !== undefined) return change
  }
  for (const [key, service] of after.services) {
    if (before.services.get(key) !== service) continue
    for (const one of service.chains) {
      const change = chainChange(one, comparison)
      if (change !== undefined) return change
    }
  }
  return undefined
}

function chainChange(
  { table, chain, rules }: ChainRules,
  { found, baseline }: Comparison,
): string | undefined {
  const present = found.get(table)?.get(chain)
  if (!present) return `no chain ${table} ${chain}`
  if (present.rules.length !== rules.length) {
    return `${table} ${chain} has ${present.rules.length} rules instead of ${rules.length}`
  }
  const key = `${table} ${chain}`
  const hash = hashOf(present.rules)
  const seen = baseline.get(key)
  if (seen?.rules === rules) return seen.hash === hash ? undefined : `${table} ${chain} was edited`
  baseline.set(key, { rules, hash })
  return undefined
}

function dispatchChange({ found, after }: Comparison): string | undefined {
  const counts = countDispatch(after.services)
  for (const { table, chain } of dispatchChains) {
    const key = `${table} ${chain}`
    const tail = key === `nat ${chains.services}` ? after.fixed.tail.length : 0
    const wanted = (counts.get(key) ?? 0) + tail
    const present = found.get(table)?.get(chain)?.rules.length
    if (present === undefined) return `no chain ${key}`
    if (present !== wanted) return `${key} has ${present} rules instead of ${wanted}`
  }
  return undefined
}

function countDispatch(services: PersistentMap<ServiceRules>): ReadonlyMap<string, number> {
  const counts = new Map<string, number>()
  for (const { dispatch } of services.values()) {
    for (const { table, chain } of dispatch) {
      const key = `${table} ${chain}`
      counts.set(key, (counts.get(key) ?? 0) + 1)
    }
  }
  return counts
}

/** FNV-1a over the lines. */
function hashOf(rules: readonly string[]): number {
  let hash = 0x811c9dc5
  for (const rule of rules) {
    for (let index = 0; index < rule.length; index++) {
      hash = Math.imul(hash ^ rule.charCodeAt(index), 0x01000193)
    }
    hash = Math.imul(hash ^ 10, 0x01000193)
  }
  return hash >>> 0
}
