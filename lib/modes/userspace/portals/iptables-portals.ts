import {
  Batch,
  parseRule,
  targetOf,
  type Iptables,
  type SavedTable,
} from '../../../kernel/iptables.js'
import { kernelError } from '../../../kernel/iptables-error.js'
import {
  subChainsFrom,
  jumpsToSubChains,
  subChainName,
  isSubChain,
  type PlacedRule,
} from './sub-chains.js'
import { filterChains, natChains } from '../names.js'
import { append, jumps, writeDifference } from '../render.js'
import type { Portals, WriteOutcome } from './portals.js'

export const ourChains: readonly (readonly [table: 'nat' | 'filter', chain: string])[] = [
  ...Object.values(natChains).map((chain) => ['nat', chain] as const),
  ...Object.values(filterChains).map((chain) => ['filter', chain] as const),
]

/** Writes the iptables rules of one family, and knows what it has written. */
export class IptablesPortals implements Portals {
  readonly listensDirectly = false
  readonly #iptables: Iptables
  readonly #fixed: readonly PlacedRule[]
  readonly #jumpsToSubChains: readonly PlacedRule[]
  /** By service key. */
  #written = new Map<string, readonly PlacedRule[]>()
  /** How many rules of Services were written. */
  #count = 0
  #hasSubChains = false

  constructor(
    iptables: Iptables,
    options: { readonly fixed: readonly PlacedRule[]; readonly guardsEachPort: boolean },
  ) {
    this.#iptables = iptables
    this.#fixed = options.fixed
    this.#jumpsToSubChains = jumpsToSubChains(iptables.family, options.guardsEachPort)
  }

  /** Rules need no preparation. */
  prepare(): Promise<readonly []> {
    return Promise.resolve([])
  }

  /** Writes everything in one transaction, whatever our chains hold now. */
  async replaceAll(rules: ReadonlyMap<string, readonly PlacedRule[]>): Promise<WriteOutcome> {
    const count = countOf(rules.values())
    this.#hasSubChains ||= count >= subChainsFrom
    const batch = new Batch()
    for (const [table, chain] of this.#chains()) batch.chain(table, chain)
    const saved = await this.#save()
    for (const table of saved) removeJumps(batch, table)
    for (const { table, chain, rule, prepend } of jumps) {
      if (prepend) batch.prepend(table, chain, rule)
      else batch.append(table, chain, rule)
    }
    for (const placed of this.#standing()) append(batch, placed)
    for (const placed of rules.values()) {
      for (const one of placed) append(batch, this.#placed(one))
    }
    if (!this.#hasSubChains) for (const table of saved) removeSubChains(batch, table)
    const changed = [...rules.keys(), ...this.#written.keys()]
    const written = await this.#restore(batch)
    this.#written = new Map(rules)
    this.#count = count
    return { ...written, changed }
  }

  /** Writes what differs from what was written before; a service without rules is removed. */
  async change(rules: ReadonlyMap<string, readonly PlacedRule[]>): Promise<WriteOutcome> {
    const batch = new Batch()
    const changed: string[] = []
    const placed = (one: PlacedRule) => this.#placed(one)
    for (const [key, after] of rules) {
      const before = this.#written.get(key) ?? []
      const difference = { before: before.map(placed), after: after.map(placed) }
      if (writeDifference(batch, difference) > 0) changed.push(key)
    }
    if (changed.length === 0) return { bytes: 0, objects: 0, changed }
    const growth =
      countOf(rules.values()) - countOf([...rules.keys()].map((key) => this.#written.get(key)))
    // The chains have grown too large. They keep sub-chains as long as the process lives.
    if (!this.#hasSubChains && this.#count + growth >= subChainsFrom) {
      return { ...(await this.replaceAll(new Map([...this.#written, ...rules]))), changed }
    }
    const written = await this.#restore(batch)
    for (const [key, after] of rules) {
      if (after.length > 0) this.#written.set(key, after)
      else this.#written.delete(key)
    }
    this.#count += growth
    return { ...written, changed }
  }

  /** Whether the kernel still holds every jump and as many rules as were written. */
  async isIntact(): Promise<boolean> {
    const expected = new Map<string, number>()
    const count = ({ chain }: PlacedRule) => expected.set(chain, (expected.get(chain) ?? 0) + 1)
    this.#standing().forEach(count)
    for (const rules of this.#written.values()) {
      for (const one of rules) count(this.#placed(one))
    }
    const tables = await this.#save()
    const chainsOf = (table: string) => tables.find((saved) => saved.table === table)?.chains
    return (
      this.#chains().every(
        ([table, chain]) =>
          chainsOf(table)?.get(chain)?.rules.length === (expected.get(chain) ?? 0),
      ) &&
      jumps.every(({ table, chain, rule }) => {
        const target = rule.args.at(-1) ?? ''
        const rules = chainsOf(table)?.get(chain)?.rules ?? []
        return rules.filter((text) => targetOf(text) === target).length === 1
      })
    )
  }

  async remove(): Promise<ReadonlySet<number>> {
    const tables = await this.#save()
    const ports = new Set(tables.flatMap(udpPortsOf))
    const batch = new Batch()
    for (const saved of tables) {
      removeJumps(batch, saved)
      for (const [table, chain] of ourChains) {
        if (table !== saved.table || !saved.chains.has(chain)) continue
        batch.chain(table, chain)
        batch.deleteChain(table, chain)
      }
      removeSubChains(batch, saved)
    }
    await this.#restore(batch)
    this.#written.clear()
    this.#count = 0
    return ports
  }

  /** Rules that belong to no Service. */
  #standing(): readonly PlacedRule[] {
    return this.#hasSubChains ? [...this.#fixed, ...this.#jumpsToSubChains] : this.#fixed
  }

  #chains(): readonly (readonly [table: 'nat' | 'filter', chain: string])[] {
    if (!this.#hasSubChains) return ourChains
    const names = new Map(
      this.#jumpsToSubChains.map(({ table, rule }) => [rule.args.at(-1) ?? '', table]),
    )
    return [...ourChains, ...[...names].map(([chain, table]) => [table, chain] as const)]
  }

  #placed(placed: PlacedRule): PlacedRule {
    const { chain, subChain } = placed
    if (!this.#hasSubChains || subChain === undefined) return placed
    return { ...placed, chain: subChainName(chain, subChain) }
  }

  #save(): Promise<readonly SavedTable[]> {
    return readPortals(this.#iptables)
  }

  async #restore(batch: Batch): Promise<Omit<WriteOutcome, 'changed'>> {
    try {
      await this.#iptables.restore(batch)
    } catch (error) {
      throw kernelError(error, `write the rules of userspace mode`)
    }
    return { bytes: batch.toString().length, objects: batch.size }
  }
}

/** The tables that hold our rules, as a whole. */
export async function readPortals(iptables: Iptables): Promise<readonly SavedTable[]> {
  try {
    return [...(await iptables.save('nat')), ...(await iptables.save('filter'))]
  } catch (error) {
    throw kernelError(error, `read the rules of userspace mode`)
  }
}

function countOf(rules: Iterable<readonly PlacedRule[] | undefined>): number {
  let count = 0
  for (const placed of rules) count += placed?.length ?? 0
  return count
}

/** Removes sub-chains that no rule jumps to any more. */
function removeSubChains(batch: Batch, { table, chains }: SavedTable): void {
  if (table !== 'nat' && table !== 'filter') return
  for (const chain of chains.keys()) {
    if (!isSubChain(table, chain)) continue
    batch.chain(table, chain)
    batch.deleteChain(table, chain)
  }
}

function removeJumps(batch: Batch, { table, chains }: SavedTable): void {
  if (table !== 'nat' && table !== 'filter') return
  const targets = new Set(jumps.map(({ rule }) => rule.args.at(-1)))
  for (const { name, policy, rules } of chains.values()) {
    if (policy === '-') continue
    for (const text of rules) {
      if (targets.has(targetOf(text))) batch.deleteSaved(table, name, text)
    }
  }
}

/** The proxy ports that rules of ours lead UDP packets to. */
function udpPortsOf({ table, chains }: SavedTable): readonly number[] {
  const ours = [...chains.values()].filter(
    ({ name }) =>
      ourChains.some((each) => each.join() === `${table},${name}`) || isSubChain(table, name),
  )
  return ours.flatMap(({ rules }) =>
    rules.flatMap((text) => {
      const { protocol, jumpArgs: [option = '', to = ''] = [] } = parseRule(text)
      const isOurs = protocol === 'udp' && /^--to-(ports|destination)$/.test(option)
      return isOurs ? [Number(to.slice(to.lastIndexOf(':') + 1))] : []
    }),
  )
}
