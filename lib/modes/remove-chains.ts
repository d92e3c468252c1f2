import { targetOf, type Batch, type SavedTable, type Table } from '../kernel/iptables.js'

export type ChainPlaces = readonly (readonly [Table, string])[]

/** The chains of the saved tables that `isDoomed` picks. */
export function chainsIn(
  saved: readonly SavedTable[],
  isDoomed: (table: Table, chain: string, chains: SavedTable['chains']) => boolean,
): ChainPlaces {
  return saved.flatMap(({ table, chains }) =>
    [...chains.keys()]
      .filter((chain) => isDoomed(table, chain, chains))
      .map((chain) => [table, chain] as const),
  )
}

/**
 * Empties and deletes chains, and deletes the jumps to them from built-in chains. A chain to which
 * another chain jumps that the batch does not empty is emptied and stays: the jump is foreign.
 */
export function removeChains(
  batch: Batch,
  saved: readonly SavedTable[],
  doomed: ChainPlaces,
): void {
  for (const [table, chain] of doomed) batch.chain(table, chain)
  const wanted = removeJumps(batch, saved, doomed)
  for (const [table, chain] of doomed) {
    if (!wanted.has(`${table} ${chain}`)) batch.deleteChain(table, chain)
  }
}

/**
 * Deletes the jumps from built-in chains. Returns the targets, as `table chain`, of foreign jumps.
 */
export function removeJumps(
  batch: Batch,
  saved: readonly SavedTable[],
  to: ChainPlaces,
): ReadonlySet<string> {
  const wanted = new Set<string>()
  for (const { table, chains } of saved) {
    const targets = new Set(to.filter(([own]) => own === table).map(([, chain]) => chain))
    for (const { name, policy, rules } of chains.values()) {
      if (batch.declares(table, name)) continue
      for (const text of rules) {
        const target = targetOf(text) ?? ''
        if (!targets.has(target)) continue
        // Only built-in chains have a policy. Our jumps are in them; any other is from somebody else.
        if (policy === '-') wanted.add(`${table} ${target}`)
        else batch.deleteSaved(table, name, text)
      }
    }
  }
  return wanted
}
