import { targetOf, type Batch, type SavedTable, type Table } from '../kernel/iptables.js'

export type ChainPlaces = readonly (readonly [Table, string])[]

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
  const wanted = new Set<string>()
  for (const { table, chains: present } of saved) {
    const targets = new Set(doomed.filter(([own]) => own === table).map(([, chain]) => chain))
    for (const { name, policy, rules } of present.values()) {
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
  for (const [table, chain] of doomed) {
    if (!wanted.has(`${table} ${chain}`)) batch.deleteChain(table, chain)
  }
}
