import { Batch, isSameRule, targetOf } from '../../kernel/iptables.js'
import { chains, isOwnChain, isServiceChain, markDrop } from './names.js'
import { jumps, kubeletJumps, localnetGuard } from './fixed-rules.js'
import { writeChain, writeShared } from './render.js'
import type { Content } from './render.js'
import type { Jump } from './fixed-rules.js'
import type { ServiceRules } from './service-rules.js'
import type { Iptables, SavedTable, Table } from '../../kernel/iptables.js'

/** What a full sync finds in the kernel, whoever wrote it. */
export type Found = ReadonlyMap<Table, SavedTable['chains']>

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
  const own = saved.filter(({ table }) => ownTables.includes(table))
  return new Map(own.map(({ table, chains: inTable }) => [table, inTable]))
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
  removeOldJumps(batch, found)
  if (usesLocalnet) ensureLocalnetGuard(batch, found)
  removeStale(batch, found, { fixed, services, undeletable })
  return batches
}

function removeStale(
  batch: Batch,
  found: Found,
  kept: Pick<FullSync, 'fixed' | 'undeletable'> & { readonly services: readonly ServiceRules[] },
): void {
  const wanted = new Set([
    ...kept.fixed.chains.map(({ table, chain }) => `${table} ${chain}`),
    ...kept.services.flatMap(({ chains: own }) =>
      own.map(({ table, chain }) => `${table} ${chain}`),
    ),
  ])
  const stale = [...found].flatMap(([table, inTable]) =>
    [...inTable.keys()]
      .filter((chain) => isServiceChain(chain) || isEmptyMarkDrop(table, inTable, chain))
      .filter((chain) => !wanted.has(`${table} ${chain}`))
      .map((chain) => ({ table, chain })),
  )
  for (const { table, chain } of stale) batch.chain(table, chain)
  for (const { table, chain } of stale) {
    if (!kept.undeletable.has(chain)) batch.deleteChain(table, chain)
  }
}

/** Leaves exactly one jump, as we write it. Other forms and duplicates are removed. */
function ensureJump(batch: Batch, found: Found, { table, from, to, rule }: Jump): void {
  const present = (found.get(table)?.get(from)?.rules ?? []).filter(
    (saved) => targetOf(saved) === to,
  )
  const exact = present.findIndex((saved) => isSameRule(saved, rule.text))
  if (exact < 0) batch.prepend(table, from, rule)
  for (const [index, saved] of present.entries()) {
    if (index !== exact) batch.deleteSaved(table, from, saved)
  }
}

/** Older versions had more jumps, such as from filter INPUT to KUBE-SERVICES. */
function removeOldJumps(batch: Batch, found: Found): void {
  for (const [table, inTable] of found) {
    for (const { name, policy, rules } of inTable.values()) {
      if (policy === '-') continue
      const ours = jumps.filter((jump) => jump.table === table && jump.from === name)
      for (const saved of rules) {
        const target = targetOf(saved)
        if (target === undefined || !isOwnChain(target)) continue
        if (!ours.some(({ to }) => to === target)) batch.deleteSaved(table, name, saved)
      }
    }
  }
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
  const present = found.get('filter')?.get(chains.kubeletFirewall)
  if (!present) batch.chain('filter', chains.kubeletFirewall)
  if (!present?.rules.some((saved) => isSameRule(saved, localnetGuard.text))) {
    batch.append('filter', chains.kubeletFirewall, localnetGuard)
  }
  for (const jump of kubeletJumps) {
    const rules = found.get(jump.table)?.get(jump.from)?.rules ?? []
    if (!rules.some((saved) => isSameRule(saved, jump.rule.text))) {
      batch.prepend(jump.table, jump.from, jump.rule)
    }
  }
}
