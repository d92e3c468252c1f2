import { compareChain, type ChainWish, type SavedTable } from '../kernel/iptables.js'
import type { Place } from '../kernel/place.js'
import { missingPlace, type Difference } from './difference.js'

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
