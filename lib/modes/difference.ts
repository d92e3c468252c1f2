import type { Place } from '../kernel/place.js'
import {
  compareChain,
  isSameRule,
  type ChainWish,
  type Rule,
  type SavedTable,
} from '../kernel/iptables.js'

/** One thing in the kernel that is not as it should be, in the words of the kernel's own tools. */
export interface Difference {
  /** The chain, set, virtual server, device or address that it concerns. */
  readonly place: Place
  /** What should be there; undefined if nothing should. */
  readonly expected: string | undefined
  /** What is there; undefined if it is missing. */
  readonly found: string | undefined
  /** The service port it belongs to; empty for parts of the node itself, or if unknown. */
  readonly owner: string
  /** How the plan writes the missing item, if that differs from `expected`. */
  readonly item?: string
  /** The place itself is missing, and everything in it. */
  readonly isWhole?: true
}

/** The first of these rules that none of the texts says. */
export function absentRule(rules: readonly Rule[], saved: readonly string[]): Rule | undefined {
  return rules.find(({ text }) => !saved.some((other) => isSameRule(other, text)))
}

/** The difference that the place itself is missing. */
export function missingPlace(place: Place, owner: string): Difference {
  const expected = `the ${place.kind}`
  return { place, expected, found: undefined, owner, isWhole: true }
}

/** `default/web:http` of `default/web:http/TCP`, as operators know it; empty for any other key. */
export function ownerText(key: string): string {
  return /^(.*)\/(?:TCP|UDP|SCTP)$/.exec(key)?.[1] ?? ''
}

/** Compares the rules of a chain; `saved` is undefined if the kernel has no such chain. */
export function chainDifferences(
  place: Place,
  wish: ChainWish,
  saved: readonly string[] | undefined,
): readonly Difference[] {
  const differences = compareChain(wish, saved).map((each) => ({ place, ...each }))
  return saved ? differences : [missingPlace(place, wish.rules[0]?.owner ?? ''), ...differences]
}

/** Looks for one rule in a chain that others use, too; `saved` are the similar rules there. */
export function jumpDifferences(
  place: Place,
  text: string,
  saved: readonly string[],
): readonly Difference[] {
  return chainDifferences(place, { rules: [{ text, owner: '' }], isOrdered: false }, saved)
}

/** The rules of one chain; undefined if the chain was not saved. */
export function rulesIn(
  tables: readonly SavedTable[],
  table: string,
  chain: string,
): readonly string[] | undefined {
  return tables.find((one) => one.table === table)?.chains.get(chain)?.rules
}
