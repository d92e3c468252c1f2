import { Batch, isSameRule, targetOf } from '../../kernel/iptables.js'
import { chains, isOwnChain, isServiceChain, markDrop } from './names.js'
import { jumps, kubeletJumps, localnetGuard } from './fixed-rules.js'
import { writeChain, writeShared } from './render.js'
import type { Content } from './render.js'
import type { Jump } from './fixed-rules.js'
import type { ServiceRules } from './service-rules.js'
import type { Iptables, SavedTable, Table } from '../../kernel/iptables.js'
import { rulesIn } from '../difference.js'
import { chainsIn } from '../remove-chains.js'

/** What a full sync finds in the kernel, whoever wrote it. */
export type Found = readonly SavedTable[]

/**
 * Whether the rules of a chain are read. Of Service chains only names are: they are written anew.
 */
export const isOfInterest = (chain: string): boolean => !isServiceChain(chain)

export const ownTables: readonly Table[] = ['nat', 'filter', 'mangle']

/** One program reads all tables, because one for each would take three times as long. */
export async function readOwnTables(
  iptables: Iptables,
  wants?: (chain: string) => boolean,
): Promise<Found> {
  const saved = await iptables.save(undefined, wants)
  return saved.filter(({ table }) => ownTables.includes(table))
}

interface FullSync extends Content {
  readonly usesLocalnet: boolean
  readonly found: Found
  /** Stale chains to which foreign rules jump. They are emptied and stay. */
  readonly undeletable: ReadonlySet<string>
  /** The number of Service rules after which a new transaction begins. */
  readonly rulesPerTransaction: number
}

/**
 * Writes all rules, adds missing jumps from the built-in chains, and removes the chains of deleted
 * Services in the layout of any version of kube-proxy (IT40, IT43). Each table changes in one
 * transaction, so no packet meets half of the rules. A large cluster takes several transactions,
 * each with whole Services. The last one has the jumps to the new chains and the removals.
 */
export function fullBatches({ found, usesLocalnet, undeletable, ...content }: FullSync): Batch[] {
  const { fixed } = content
  const services = [...content.services.values()]
  let batch = new Batch()
  const batches = [batch]
  for (const one of fixed.chains) writeChain(batch, one)
  for (const service of services) {
    if (batch.rulesWritten('nat') >= content.rulesPerTransaction) {
      batch = new Batch()
      batches.push(batch)
    }
    for (const one of service.chains) writeChain(batch, one)
  }
  writeShared(batch, fixed, services)
  for (const jump of jumps) ensureJump(batch, found, jump)
  for (const { table, chain, text } of oldJumps(found)) batch.deleteSaved(table, chain, text)
  if (usesLocalnet) ensureLocalnetGuard(batch, found)
  removeStale(batch, found, { fixed, services, undeletable })
  return batches
}

function removeStale(
  batch: Batch,
  found: Found,
  kept: Pick<FullSync, 'fixed' | 'undeletable'> & { readonly services: readonly ServiceRules[] },
): void {
  const written = [kept.fixed, ...kept.services].flatMap(({ chains: own }) => own)
  const wanted = new Set(written.map(({ table, chain }) => `${table} ${chain}`))
  const stale = chainsIn(found, (table, chain, inTable) => {
    const isStale = isServiceChain(chain) || isEmptyMarkDrop(table, inTable, chain)
    return isStale && !wanted.has(`${table} ${chain}`)
  })
  for (const [table, chain] of stale) batch.chain(table, chain)
  for (const [table, chain] of stale) {
    if (!kept.undeletable.has(chain)) batch.deleteChain(table, chain)
  }
}

/** Leaves exactly one jump, as we write it. Other forms and duplicates are removed. */
function ensureJump(batch: Batch, found: Found, { table, from, to, rule }: Jump): void {
  const present = (rulesIn(found, table, from) ?? []).filter((saved) => targetOf(saved) === to)
  const exact = present.findIndex((saved) => isSameRule(saved, rule.text))
  if (exact < 0) batch.prepend(table, from, rule)
  for (const [index, saved] of present.entries()) {
    if (index !== exact) batch.deleteSaved(table, from, saved)
  }
}

/**
 * Jumps to chains of ours from built-in chains in which we write none. Older versions had more, such
 * as from filter INPUT to KUBE-SERVICES.
 */
export function oldJumps(found: Found) {
  const known = new Set(jumps.map(({ table, from, to }) => `${table} ${from} ${to}`))
  return found.flatMap(({ table, chains: inTable }) =>
    [...inTable.values()]
      .filter(({ policy }) => policy !== '-')
      .flatMap(({ name, rules }) => rules.map((text) => ({ table, chain: name, text })))
      .filter(({ chain, text }) => {
        const to = targetOf(text) ?? ''
        return isOwnChain(to) && !known.has(`${table} ${chain} ${to}`)
      }),
  )
}

/** Whether a chain is the empty one that older versions of kube-proxy made for kubelet. */
export function isEmptyMarkDrop(
  table: Table,
  inTable: SavedTable['chains'],
  chain: string,
): boolean {
  return table === 'nat' && chain === markDrop && inTable.get(chain)?.rules.length === 0
}

/**
 * IT11: adds the rule if it is missing. Nothing else changes, because kubelet uses the chain, too.
 */
function ensureLocalnetGuard(batch: Batch, found: Found): void {
  const present = rulesIn(found, 'filter', chains.kubeletFirewall)
  if (!present) batch.chain('filter', chains.kubeletFirewall)
  if (!present?.some((saved) => isSameRule(saved, localnetGuard.text))) {
    batch.append('filter', chains.kubeletFirewall, localnetGuard)
  }
  for (const jump of kubeletJumps) {
    const rules = rulesIn(found, jump.table, jump.from) ?? []
    if (!rules.some((saved) => isSameRule(saved, jump.rule.text))) {
      batch.prepend(jump.table, jump.from, jump.rule)
    }
  }
}
