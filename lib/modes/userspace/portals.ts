import { KernelError, type KernelErrorKind } from '../../errors.js'
import {
  Batch,
  isIptablesError,
  type Iptables,
  type IptablesErrorKind,
  type SavedTable,
} from '../../kernel/iptables.js'
import { filterChains, natChains } from './names.js'
import { append, jumps, writeDifference, type PlacedRule } from './render.js'

export interface WrittenPortals {
  readonly bytes: number
  readonly objects: number
  /** Keys of the services whose rules differ now. */
  readonly changed: readonly string[]
}

export const ourChains: readonly (readonly [table: 'nat' | 'filter', chain: string])[] = [
  ...Object.values(natChains).map((chain) => ['nat', chain] as const),
  ...Object.values(filterChains).map((chain) => ['filter', chain] as const),
]

/** The rules of one family as they were written, and the way to change them. */
export class Portals {
  readonly #iptables: Iptables
  readonly #fixed: readonly PlacedRule[]
  /** By service key. */
  #written = new Map<string, readonly PlacedRule[]>()

  constructor(iptables: Iptables, fixed: readonly PlacedRule[]) {
    this.#iptables = iptables
    this.#fixed = fixed
  }

  /** Writes everything in one transaction, whatever our chains hold now. */
  async replaceAll(rules: ReadonlyMap<string, readonly PlacedRule[]>): Promise<WrittenPortals> {
    const batch = new Batch()
    for (const [table, chain] of ourChains) batch.chain(table, chain)
    for (const saved of await this.#save()) removeJumps(batch, saved)
    for (const { table, chain, rule, prepend } of jumps) {
      if (prepend) batch.prepend(table, chain, rule)
      else batch.append(table, chain, rule)
    }
    for (const placed of this.#fixed) append(batch, placed)
    for (const placed of rules.values()) for (const one of placed) append(batch, one)
    const changed = [...rules.keys(), ...this.#written.keys()]
    const written = await this.#restore(batch)
    this.#written = new Map(rules)
    return { ...written, changed }
  }

  /** Writes what differs from what was written before; a service without rules is removed. */
  async change(rules: ReadonlyMap<string, readonly PlacedRule[]>): Promise<WrittenPortals> {
    const batch = new Batch()
    const changed: string[] = []
    for (const [key, after] of rules) {
      const before = this.#written.get(key) ?? []
      if (writeDifference(batch, { before, after }) > 0) changed.push(key)
    }
    if (changed.length === 0) return { bytes: 0, objects: 0, changed }
    const written = await this.#restore(batch)
    for (const [key, placed] of rules) {
      if (placed.length > 0) this.#written.set(key, placed)
      else this.#written.delete(key)
    }
    return { ...written, changed }
  }

  /** Whether the kernel still holds every jump and as many rules as were written. */
  async isIntact(): Promise<boolean> {
    const expected = new Map<string, number>()
    const count = ({ chain }: PlacedRule) => expected.set(chain, (expected.get(chain) ?? 0) + 1)
    this.#fixed.forEach(count)
    for (const placed of this.#written.values()) placed.forEach(count)
    const tables = await this.#save()
    const chainsOf = (table: string) => tables.find((saved) => saved.table === table)?.chains
    return (
      ourChains.every(
        ([table, chain]) =>
          chainsOf(table)?.get(chain)?.rules.length === (expected.get(chain) ?? 0),
      ) &&
      jumps.every(({ table, chain, rule }) => {
        const target = rule.args.at(-1) ?? ''
        const rules = chainsOf(table)?.get(chain)?.rules ?? []
        return rules.filter((text) => jumpTargetOf(text) === target).length === 1
      })
    )
  }

  /** Takes everything away, from this run or an earlier one (US19). */
  async remove(): Promise<void> {
    const tables = await this.#save()
    const batch = new Batch()
    for (const saved of tables) {
      removeJumps(batch, saved)
      for (const [table, chain] of ourChains) {
        if (table !== saved.table || !saved.chains.has(chain)) continue
        batch.chain(table, chain)
        batch.deleteChain(table, chain)
      }
    }
    await this.#restore(batch)
    this.#written.clear()
  }

  #save(): Promise<readonly SavedTable[]> {
    return readPortals(this.#iptables)
  }

  async #restore(batch: Batch): Promise<Omit<WrittenPortals, 'changed'>> {
    try {
      await this.#iptables.restore(batch)
    } catch (error) {
      throw kernelErrorOf(error)
    }
    return { bytes: batch.toString().length, objects: batch.size }
  }
}

/** The tables our rules are in, with everything in them. */
export async function readPortals(iptables: Iptables): Promise<readonly SavedTable[]> {
  try {
    return [...(await iptables.save('nat')), ...(await iptables.save('filter'))]
  } catch (error) {
    throw kernelErrorOf(error)
  }
}

function removeJumps(batch: Batch, { table, chains }: SavedTable): void {
  if (table !== 'nat' && table !== 'filter') return
  const targets = new Set(jumps.map(({ rule }) => rule.args.at(-1)))
  for (const { name, policy, rules } of chains.values()) {
    if (policy === '-') continue
    for (const text of rules) {
      if (targets.has(jumpTargetOf(text))) batch.deleteSaved(table, name, text)
    }
  }
}

export function jumpTargetOf(rule: string): string | undefined {
  return / -j (\S+)$/.exec(` ${rule}`)?.[1]
}

const kernelErrorKinds: Readonly<Record<IptablesErrorKind, KernelErrorKind>> = {
  missing: 'not-found',
  denied: 'denied',
  locked: 'busy',
  unsupported: 'unsupported',
  'not-found': 'not-found',
  invalid: 'invalid',
  'timed-out': 'timed-out',
  failed: 'failed',
}

export function kernelErrorOf(error: unknown): unknown {
  if (!isIptablesError(error)) return error
  return new KernelError(kernelErrorKinds[error.kind], error.message, {
    cause: error,
    detail: error.detail,
  })
}
