import { Turns } from '../../../async.js'
import { Batch, type Iptables, type SavedTable, type Table } from '../../../kernel/iptables.js'
import { kernelError } from '../../../kernel/command.js'
import {
  isSubChain,
  subChainsFrom,
  jumpsToSubChains,
  subChainName,
  type PlacedRule,
} from './sub-chains.js'
import { messageOf } from '../../../errors.js'
import { ForeignCommits } from '../../foreign-commits.js'
import { chainsIn, removeChains, removeJumps, type ChainPlaces } from '../../remove-chains.js'
import { Reported } from '../../reported-differences.js'
import { writeAll, writeDifference } from '../render.js'
import { isDrain, isOurs, keepTracking, ourChains, udpPortsOf } from './removal.js'
import { PortalsVerification } from './verify.js'
import type { Log } from '../../mode.js'
import type { Portals, WriteOutcome } from './portals.js'

interface IptablesPortalsOptions {
  readonly fixed: readonly PlacedRule[]
  readonly log?: Log
  /** Shared by all that write to the same kernel. */
  readonly foreign?: ForeignCommits
}

/** Writes the iptables rules of one family, and remembers them. */
export class IptablesPortals implements Portals {
  readonly listensDirectly = false
  readonly iptables: Iptables
  readonly #fixed: readonly PlacedRule[]
  readonly #jumpsToSubChains: readonly PlacedRule[]
  /** By service key. */
  #written = new Map<string, readonly PlacedRule[]>()
  #hasSubChains = false
  readonly #log: Log | undefined
  readonly #foreign: ForeignCommits
  readonly #reported: Reported | undefined
  /** Everything was written, and nothing has failed since. */
  #isKnown = false
  #fullWrites = 0
  /** Writes never overlap, and a verification never begins during one. */
  readonly #writes = new Turns()
  #verification: PortalsVerification | undefined
  /** `ForeignCommits.mark` when all rules were last found right. */
  #verified: number | undefined

  constructor(iptables: Iptables, options: IptablesPortalsOptions) {
    this.iptables = iptables
    this.#log = options.log
    this.#foreign = options.foreign ?? new ForeignCommits()
    this.#reported = options.log && new Reported(options.log)
    this.#fixed = options.fixed
    const { family, capabilities } = iptables
    this.#jumpsToSubChains = jumpsToSubChains(family, capabilities.sparseMasks)
  }

  /** Writes everything in one transaction, whatever our chains hold now. */
  replaceAll(rules: ReadonlyMap<string, readonly PlacedRule[]>): Promise<WriteOutcome> {
    return this.#writes.take(() => this.#replaceAll(rules))
  }

  async #replaceAll(rules: ReadonlyMap<string, readonly PlacedRule[]>): Promise<WriteOutcome> {
    this.#verification?.ignoreAll()
    this.#isKnown = false
    this.#hasSubChains ||= countOf(rules.values()) >= subChainsFrom
    const batch = new Batch()
    for (const [table, chain] of this.#chains()) batch.chain(table, chain)
    const saved = await this.#saved()
    removeJumps(batch, saved, ourChains)
    const placed = [...rules.values()].flat().map((one) => this.#placed(one))
    writeAll(batch, [...this.#standing(), ...placed])
    if (!this.#hasSubChains) removeChains(batch, saved, chainsIn(saved, isSubChain))
    removeChains(batch, saved, chainsIn(saved, isDrain))
    const changed = [...rules.keys(), ...this.#written.keys()]
    const written = await this.#restore(batch)
    this.#written = new Map(rules)
    this.#isKnown = true
    this.#fullWrites++
    return { ...written, changed }
  }

  change(rules: ReadonlyMap<string, readonly PlacedRule[]>): Promise<WriteOutcome> {
    return this.#writes.take(() => this.#change(rules))
  }

  async #change(rules: ReadonlyMap<string, readonly PlacedRule[]>): Promise<WriteOutcome> {
    const batch = new Batch()
    const changed: string[] = []
    const placed = (one: PlacedRule) => this.#placed(one)
    for (const [key, after] of rules) {
      const before = this.#written.get(key) ?? []
      const difference = { before: before.map(placed), after: after.map(placed) }
      if (writeDifference(batch, difference) === 0) continue
      changed.push(key)
      this.#verification?.ignore([...difference.before, ...difference.after])
    }
    if (changed.length === 0) return { bytes: 0, objects: 0, changed }
    const all = () => new Map([...this.#written, ...rules])
    // The chains have grown too large. They keep sub-chains as long as the process lives.
    if (!this.#hasSubChains && countOf(all().values()) >= subChainsFrom) {
      return { ...(await this.#replaceAll(all())), changed }
    }
    let written: Pick<WriteOutcome, 'bytes' | 'objects'>
    try {
      written = await this.#restore(batch)
    } catch (error) {
      // Another program may have removed rules that this change deletes. A full write needs none.
      this.#log?.info({ error: messageOf(error) }, 'a change of rules failed; all are written anew')
      return { ...(await this.#replaceAll(all())), isRepair: true }
    }
    for (const [key, after] of rules) {
      if (after.length > 0) this.#written.set(key, after)
      else this.#written.delete(key)
    }
    return { ...written, changed }
  }

  /**
   * Whether the kernel holds the rules that were written, and no others. Where the kernel counts
   * transactions, rules are read only after one of another program, and writes wait meanwhile.
   */
  async isIntact(): Promise<boolean> {
    const { mark } = this.#foreign
    if (mark !== undefined && mark === this.#verified) return true
    const verification = await this.#writes.take(() => this.#beginVerification())
    if (!verification) return true
    let endMark: number | undefined
    try {
      await verification.prepare()
      endMark = await this.#foreign.undisturbed(() => this.iptables.visit(verification))
    } catch (error) {
      throw kernelError(error, `read the rules of userspace mode`)
    } finally {
      this.#verification = undefined
    }
    const differences = verification.differences()
    const reading = { fullSyncs: this.#fullWrites, mark, endMark }
    const fresh = this.#reported?.fresh(differences, reading) ?? differences
    this.#verified = fresh.length > 0 || verification.isPartial ? undefined : mark
    const [first] = fresh
    if (first) this.#log?.info({ chain: first.chain }, `a chain was changed: it ${first.what}`)
    return first === undefined
  }

  /** Undefined before the first write, and after one that failed: then all is written soon. */
  #beginVerification(): Promise<PortalsVerification | undefined> {
    this.#verification = undefined
    if (this.#isKnown) {
      const rules = this.#inPlace([...this.#written.values()])
      const wanted = { chains: this.#chains(), standing: this.#standing(), rules }
      this.#verification = new PortalsVerification(wanted)
    }
    return Promise.resolve(this.#verification)
  }

  *#inPlace(rules: readonly (readonly PlacedRule[])[]): Iterable<readonly PlacedRule[]> {
    for (const placed of rules) yield placed.map((one) => this.#placed(one))
  }

  /** First adds a rule that needs tracking, and leaves it: otherwise open connections would hang. */
  remove(): Promise<ReadonlySet<number>> {
    return this.#writes.take(async () => {
      this.#verification?.ignoreAll()
      const tables = await this.#saved()
      const ports = new Set(tables.flatMap(udpPortsOf))
      const batch = new Batch()
      removeChains(batch, tables, this.#ownIn(tables))
      if (batch.size > 0) {
        await this.#restore(keepTracking())
        await this.#restore(batch)
      }
      this.#written.clear()
      this.#isKnown = false
      return ports
    })
  }

  drained(): Promise<void> {
    return this.#writes.take(async () => {
      const batch = new Batch()
      const saved = await this.#saved()
      removeChains(batch, saved, chainsIn(saved, isDrain))
      await this.#restore(batch)
    })
  }

  /** What a write has to know. Where not all of a table can be read, the jumps have to do. */
  #saved(): Promise<readonly SavedTable[]> {
    return readPortals(this.iptables, () => true)
  }

  /** Chains that are there, of earlier runs too. Those that this one wrote need not be read. */
  #ownIn(tables: readonly SavedTable[]): ChainPlaces {
    const there = chainsIn(tables, isOurs)
    const seen = new Set(there.map((place) => place.join(' ')))
    const written = this.#isKnown ? this.#chains() : []
    return [...there, ...written.filter((place) => !seen.has(place.join(' ')))]
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

  async #restore(batch: Batch): Promise<Omit<WriteOutcome, 'changed'>> {
    try {
      await this.#foreign.around(batch.transactions, () => this.iptables.restore(batch))
    } catch (error) {
      this.#isKnown = false
      throw kernelError(error, `write the rules of userspace mode`)
    }
    return { bytes: batch.toString().length, objects: batch.size }
  }
}

/** The tables that hold our rules, as a whole. */
export async function readPortals(
  iptables: Iptables,
  wants?: (chain: string) => boolean,
): Promise<readonly SavedTable[]> {
  try {
    const tables: readonly Table[] = ['nat', 'filter']
    const saved = await iptables.save(undefined, wants)
    return saved.filter(({ table }) => tables.includes(table))
  } catch (error) {
    throw kernelError(error, `read the rules of userspace mode`)
  }
}

const countOf = (rules: Iterable<readonly PlacedRule[]>) => [...rules].flat().length
