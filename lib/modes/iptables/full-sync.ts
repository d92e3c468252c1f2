import { Batch, splitArguments } from '../../kernel/iptables.js'
import { chains, isServiceChain } from './names.js'
import { jumps, kubeletJumps, localnetGuard } from './fixed-rules.js'
import { writeAll } from './render.js'
import type { Content } from './render.js'
import type { Jump } from './fixed-rules.js'
import type { Rule, SavedTable, Table } from '../../kernel/iptables.js'

/** What a full sync found in the kernel, whoever wrote it. */
export type Found = ReadonlyMap<Table, SavedTable['chains']>

export function foundIn(saved: readonly SavedTable[]): Found {
  return new Map(saved.map(({ table, chains: inTable }) => [table, inTable]))
}

export interface FullSync extends Content {
  readonly usesLocalnet: boolean
  readonly found: Found
  /** Stale chains somebody else's rules jump to: they are emptied but stay. */
  readonly undeletable: ReadonlySet<string>
}

/**
 * Writes everything, makes sure the built-in chains jump to it, and removes the chains of
 * Services that are no more, in the layout of any version of kube-proxy (IT40, IT43): in one
 * transaction for each table, so no packet meets half of it.
 */
export function fullBatch({ found, usesLocalnet, undeletable, ...content }: FullSync): Batch {
  const batch = new Batch()
  const services = [...content.services.values()]
  writeAll(batch, content.fixed, services)
  for (const jump of jumps) ensureJump(batch, found, jump)
  if (usesLocalnet) ensureLocalnetGuard(batch, found)
  const wanted = new Set([
    ...content.fixed.chains.map(({ table, chain }) => `${table} ${chain}`),
    ...services.flatMap((service) => service.chains.map(({ table, chain }) => `${table} ${chain}`)),
  ])
  const stale = [...found].flatMap(([table, inTable]) =>
    [...inTable.keys()]
      .filter((chain) => isServiceChain(chain) || chain === chains.markNonPods)
      .filter((chain) => !wanted.has(`${table} ${chain}`))
      .map((chain) => ({ table, chain })),
  )
  for (const { table, chain } of stale) batch.chain(table, chain)
  for (const { table, chain } of stale) {
    if (!undeletable.has(chain)) batch.deleteChain(table, chain)
  }
  return batch
}

/** One jump, worded as ours; older wordings and duplicates go. */
function ensureJump(batch: Batch, found: Found, { table, from, to, rule }: Jump): void {
  const present = (found.get(table)?.get(from)?.rules ?? []).filter(
    (saved) => targetOf(saved) === to,
  )
  const exact = present.indexOf(rule.text)
  if (exact < 0) batch.prepend(table, from, rule)
  for (const [index, saved] of present.entries()) {
    if (index !== exact) batch.deleteSaved(table, from, saved)
  }
}

/** IT11: the rule is kubelet's too, so it is added where missing and nothing else is touched. */
function ensureLocalnetGuard(batch: Batch, found: Found): void {
  const present = found.get('filter')?.get(chains.kubeletFirewall)
  if (!present) batch.chain('filter', chains.kubeletFirewall)
  if (!present?.rules.some((saved) => isSameRule(saved, localnetGuard))) {
    batch.append('filter', chains.kubeletFirewall, localnetGuard)
  }
  for (const jump of kubeletJumps) {
    const rules = found.get(jump.table)?.get(jump.from)?.rules ?? []
    if (!rules.some((saved) => isSameRule(saved, jump.rule))) {
      batch.prepend(jump.table, jump.from, jump.rule)
    }
  }
}

/** The chain or target a saved rule goes to. */
export function targetOf(saved: string): string | undefined {
  const args = splitArguments(saved)
  const at = args.findIndex((arg) => arg === '-j' || arg === '-g')
  return at < 0 ? undefined : args[at + 1]
}

function isSameRule(saved: string, rule: Rule): boolean {
  return splitArguments(saved).join('\n') === rule.args.join('\n')
}
