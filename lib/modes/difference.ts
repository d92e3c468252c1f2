import type { Place } from '../kernel/place.js'
import { compareChain, type ChainWish, type SavedTable } from '../kernel/iptables.js'

/** One thing of the kernel that is not as it should be, in the words of the kernel's own tools. */
export interface Difference {
  /** The chain, set, virtual server, device or address that it concerns. */
  readonly place: Place
  /** What should stand there; undefined for what should not be there at all. */
  readonly expected: string | undefined
  /** What stands there; undefined for what is missing. */
  readonly found: string | undefined
  /** The service port it belongs to; empty for parts of the node itself, or if unknown. */
  readonly owner: string
  /** The text of the missing item in the plan, where `expected` differs from it. */
  readonly item?: string
  /** The place itself is missing, with all that should stand there. */
  readonly isWhole?: true
}

/** The place itself is missing. */
export function missingPlace(place: Place, owner: string): Difference {
  const expected = `the ${place.kind}`
  return { place, expected, found: undefined, owner, isWhole: true }
}

/** `default/web:http` of `default/web:http/TCP`, as operators know it; empty for any other key. */
export function ownerText(key: string): string {
  return /^(.*)\/(?:TCP|UDP|SCTP)$/.exec(key)?.[1] ?? ''
}

/** What a chain lacks and has too much; `saved` is undefined where there is no chain. */
export function chainDifferences(
  place: Place,
  wish: ChainWish,
  saved: readonly string[] | undefined,
): readonly Difference[] {
  const differences = compareChain(wish, saved).map((each) => ({ place, ...each }))
  return saved ? differences : [missingPlace(place, wish.rules[0]?.owner ?? ''), ...differences]
}

/** The same for one rule of the node in a chain that others use, too; `saved` are its likes there. */
export function jumpDifferences(
  place: Place,
  text: string,
  saved: readonly string[],
): readonly Difference[] {
  return chainDifferences(place, { rules: [{ text, owner: '' }], isOrdered: false }, saved)
}

/** The rules of one chain among all that were saved. */
export function rulesIn(
  tables: readonly SavedTable[],
  table: string,
  chain: string,
): readonly string[] | undefined {
  return tables.find((one) => one.table === table)?.chains.get(chain)?.rules
}
