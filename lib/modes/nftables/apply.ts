import { Slice } from '../../async.js'
import { pause, Turns } from '../../async.js'
import { KernelError, messageOf } from '../../errors.js'
import type { Chain, Command, NftSet, Table, Transaction } from '../../kernel/nftables/model.js'
import type { RulesetWriter } from '../../kernel/nftables/nft.js'
import type { ChainsAndSets, ClientReader, RulesetReader } from '../../kernel/nftables/reader.js'
import type { IpFamily } from '../../state/ip.js'
import type { KnownByFamily } from '../known.js'
import type { Applied, ModeContext } from '../mode.js'
import { between, type Retired } from './changes.js'
import type { NftablesPlan } from './plan.js'
import { recreation, renewal } from './render.js'

/** NF20: an unused chain stays, empty, for this long before it is deleted. */
const retirementMs = 1000
const tickMs = 500
/** Everything is written anew after so many failed attempts to delete what is unused (NF17). */
const attemptsMax = 3

interface ApplierDeps {
  readonly writer: RulesetWriter
  /** Reads the clients of session affinity, who keep their endpoints when their sets are written anew. */
  readonly reader?: ClientReader
  /** Without it a full write deletes the table. */
  readonly tables?: Pick<RulesetReader, 'contents'>
  readonly context: ModeContext
  readonly known: KnownByFamily<NftablesPlan>
  readonly now: () => number
}

/** Chains and sets that are unused in the kernel, and the time to delete them. */
interface Retirement {
  readonly table: Table
  readonly chains: Map<string, Chain>
  readonly sets: Map<string, NftSet>
  dueAt: number
  attempts: number
}

/** Brings plans into the kernel, one transaction at a time. */
export class NftablesApplier {
  readonly #deps: ApplierDeps
  readonly #retired = new Map<IpFamily, Retirement>()
  /** The tables in which something cannot be deleted. */
  readonly #stuck = new Set<IpFamily>()
  /** Writes take turns, because a difference builds on the transaction before it. */
  readonly #turns = new Turns()

  constructor(deps: ApplierDeps) {
    this.#deps = deps
  }

  apply(plan: NftablesPlan): Promise<Applied> {
    return this.#turns.take(() =>
      this.#deps.known[plan.family].update(async (previous) => ({
        now: plan,
        result: await (previous ? this.#update(plan, previous) : this.#recreate(plan)),
      })),
    )
  }

  /** Deletes what has been unused for long enough, until the signal. */
  async run(signal: AbortSignal): Promise<void> {
    for (;;) {
      await pause(tickMs, signal)
      if (signal.aborted) break
      await this.#turns.take(() => this.sweep())
    }
    await this.idle()
  }

  /** Resolves when nothing is being written. */
  async idle(): Promise<void> {
    await this.#turns.idle()
  }

  /** Deletes what is due (NF20). `run` calls it; it is public for tests. */
  async sweep(): Promise<void> {
    for (const [family, retired] of this.#retired) {
      if (retired.dueAt > this.#deps.now()) continue
      const commands: Command[] = [
        ...Array.from(retired.chains.values(), (chain): Command => ({ do: 'delete-chain', chain })),
        ...Array.from(retired.sets.values(), (set): Command => ({ do: 'delete-set', set })),
      ]
      try {
        await this.#deps.writer.commit({ table: retired.table, commands })
        this.#retired.delete(family)
      } catch (error) {
        this.#postpone(family, retired, error)
      }
    }
  }

  async #recreate(plan: NftablesPlan): Promise<Applied> {
    const { table, family } = plan
    const parts = [...plan.parts.values()]
    const sets = parts.flatMap((part) => part.sets)
    const wanted = { chains: parts.flatMap(({ chains }) => chains), sets }
    const affinity = sets.filter(({ timeoutSeconds }) => timeoutSeconds !== undefined)
    const remembered = await this.#remembered(table, affinity)
    const write = async ({ commands }: Transaction): Promise<Applied> => {
      const all = [...commands, ...remembered]
      // For thousands of Services each part of this takes long, and health checks want an answer.
      await new Slice().rest()
      const bytes = await this.#deps.writer.commit({ table, commands: all })
      this.#retired.delete(family)
      return { full: true, bytes, objects: all.length, failed: [] }
    }
    const present = this.#stuck.delete(family) ? undefined : await this.#present(table, wanted)
    if (!present) return write(recreation(plan))
    try {
      const applied = await write(renewal(plan, present))
      this.#noteRetired(plan, without(present, wanted))
      return applied
    } catch (error) {
      const reason = messageOf(error)
      this.#deps.context.log.debug(
        { family, reason },
        'the nftables table is deleted and made anew',
      )
      return write(recreation(plan))
    }
  }

  /** What the table holds, if it can stay. */
  async #present(table: Table, wanted: ChainsAndSets): Promise<ChainsAndSets | undefined> {
    const { tables, context } = this.#deps
    try {
      return await tables?.contents(table, wanted)
    } catch (error) {
      context.log.debug({ error: messageOf(error) }, 'could not read the nftables table')
      return undefined
    }
  }

  async #remembered(table: Table, affinity: readonly NftSet[]): Promise<readonly Command[]> {
    const { reader, context } = this.#deps
    if (!reader || affinity.length === 0) return []
    try {
      return rememberedClients(affinity, await reader.remembered(table, affinity))
    } catch (error) {
      // The sets may be damaged as well, and rules matter more than affinity.
      context.log.warn({ error: messageOf(error) }, 'clients of session affinity are lost')
      return []
    }
  }

  async #update(plan: NftablesPlan, previous: NftablesPlan): Promise<Applied> {
    const { commands, retired, replaced } = between(plan, previous)
    if (commands.length === 0) return { full: false, bytes: 0, objects: 0, failed: [] }
    const remembered = await this.#remembered(plan.table, replaced)
    const all = [...this.#clearing(plan.family, commands), ...commands, ...remembered]
    const bytes = await this.#deps.writer.commit({ table: plan.table, commands: all })
    this.#noteRevived(plan.family, commands)
    this.#noteRetired(plan, retired)
    return { full: false, bytes, objects: all.length, failed: [] }
  }

  /**
   * A set that comes back while it waits for its deletion is deleted first: its timeout may differ.
   */
  #clearing(family: IpFamily, commands: readonly Command[]): readonly Command[] {
    const waiting = this.#retired.get(family)?.sets
    if (!waiting) return []
    return commands.flatMap((command): readonly Command[] => {
      const old = command.do === 'add-set' ? waiting.get(command.set.name) : undefined
      return old ? [{ do: 'delete-set', set: old }] : []
    })
  }

  #noteRevived(family: IpFamily, commands: readonly Command[]): void {
    const waiting = this.#retired.get(family)
    if (!waiting) return
    for (const command of commands) {
      if (command.do === 'add-chain') waiting.chains.delete(command.chain.name)
      else if (command.do === 'add-set') waiting.sets.delete(command.set.name)
    }
    if (waiting.chains.size + waiting.sets.size === 0) this.#retired.delete(family)
  }

  #noteRetired(plan: NftablesPlan, { chains, sets }: Retired): void {
    if (chains.length + sets.length === 0) return
    let waiting = this.#retired.get(plan.family)
    if (!waiting) {
      // Chains that are freed later go at the same time. If each of them postponed the deletion, a
      // busy cluster would never delete anything.
      const dueAt = this.#deps.now() + retirementMs
      waiting = { table: plan.table, chains: new Map(), sets: new Map(), dueAt, attempts: 0 }
      this.#retired.set(plan.family, waiting)
    }
    for (const chain of chains) waiting.chains.set(chain.name, chain)
    for (const set of sets) waiting.sets.set(set.name, set)
  }

  #postpone(family: IpFamily, retired: Retirement, error: unknown): void {
    const { context, now } = this.#deps
    retired.attempts++
    retired.dueAt = now() + retirementMs
    const isGone = error instanceof KernelError && error.kind === 'not-found'
    context.log.warn(
      { family, attempt: retired.attempts, error: messageOf(error) },
      'could not delete unused nftables chains, will try again',
    )
    if (!isGone && retired.attempts < attemptsMax) return
    this.#retired.delete(family)
    this.#stuck.add(family)
    const reason = isGone
      ? 'somebody else removed nftables chains'
      : 'unused nftables chains could not be deleted'
    context.resync(reason, { byOthers: isGone })
  }
}

/** What a table holds and nobody wants. */
function without(present: ChainsAndSets, wanted: ChainsAndSets): Retired {
  const [chains, sets] = [wanted.chains, wanted.sets].map(
    (list) => new Set(list.map(({ name }) => name)),
  )
  return {
    chains: present.chains.filter(({ name }) => !chains?.has(name)),
    sets: present.sets.filter(({ name }) => !sets?.has(name)),
  }
}

/**
 * The clients that the kernel remembers for session affinity become elements of the same sets when
 * these are new, each with the time it has left. Clients of endpoints that are gone are forgotten.
 */
function rememberedClients(
  affinity: readonly NftSet[],
  remembered: Awaited<ReturnType<ClientReader['remembered']>>,
): readonly Command[] {
  const commands: Command[] = []
  for (const set of affinity) {
    // The kernel refuses an element that expires later than its set allows.
    const longest = Math.floor(set.timeoutSeconds ?? 0) * 1000
    for (const { address, expiresMs } of remembered.get(set.name) ?? []) {
      const element = { set, key: [address], expiresMs: Math.min(expiresMs, longest) }
      if (expiresMs > 0) commands.push({ do: 'add-element', element })
    }
  }
  return commands
}
