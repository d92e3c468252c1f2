import { canonicalRule, isSameRule } from './canonical.js'
import { commentOf, parseRule } from './parse.js'

/** A rule that a chain should have, and its owner. */
export interface WantedRule {
  readonly text: string
  readonly owner: string
  /** How the caller's plan writes the rule, if that differs from `text`. */
  readonly item?: string
}

export interface ChainWish {
  readonly rules: readonly WantedRule[]
  /** Whether their order decides about packets. */
  readonly isOrdered: boolean
}

export interface RuleDifference {
  readonly expected: string | undefined
  readonly found: string | undefined
  readonly owner: string
  /** The `item` of the wanted rule that is missing. */
  readonly item?: string
}

/** Rules that a chain lacks or has too many; `saved` is undefined where there is no chain. */
export function compareChain(
  { rules, isOrdered }: ChainWish,
  saved: readonly string[] | undefined,
): readonly RuleDifference[] {
  const left = new Map<string, string[]>()
  for (const text of saved ?? []) {
    const key = canonicalRule(text)
    left.set(key, [...(left.get(key) ?? []), text])
  }
  const missing: RuleDifference[] = []
  for (const { text, ...rest } of rules) {
    const same = left.get(canonicalRule(text))
    if (same?.pop() === undefined) missing.push({ expected: text, found: undefined, ...rest })
  }
  const extra = [...left.values()].flat().map((text) => ({
    expected: undefined,
    found: text,
    owner: ownerInComment(text),
  }))
  if (missing.length > 0 || extra.length > 0) return [...missing, ...extra]
  return isOrdered ? orderDifference(rules, saved ?? []) : []
}

/** The first rule at a wrong place, in a chain that has all rules. */
function orderDifference(
  rules: readonly WantedRule[],
  saved: readonly string[],
): readonly RuleDifference[] {
  for (const [index, { text, owner }] of rules.entries()) {
    const there = saved[index] ?? ''
    if (isSameRule(there, text)) continue
    return [{ expected: `rule ${index + 1}: ${text}`, found: `rule ${index + 1}: ${there}`, owner }]
  }
  return []
}

/** The service port at the beginning of the comment; empty for a rule of no Service. */
function ownerInComment(text: string): string {
  const [first = ''] = commentOf(parseRule(text)).split(' ')
  return /^[^/\s]+\/[^/\s]+$/.test(first) ? first : ''
}
