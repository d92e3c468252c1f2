import { setImmediate } from 'node:timers/promises'
import { pause } from '../../async.js'
import { KernelError, messageOf } from '../../errors.js'
import type { RulesetWriter } from '../../kernel/nftables/nft.js'
import type { RulesetReader } from '../../kernel/nftables/reader.js'
import type { CommitWatch } from '../../kernel/nftables-netlink/commit-watch.js'
import { ipFamilies } from '../../state/ip.js'
import type { KnownByFamily } from '../known.js'
import { placeText } from '../../kernel/place.js'
import type { ModeContext } from '../mode.js'
import type { NftablesPlan } from './plan.js'
import { nftablesDifferences, type ComparisonDeps } from './differences.js'

export interface GuardDeps {
  readonly context: ModeContext
  readonly reader: RulesetReader
  /** Starts a watch. It calls a handler when others commit, and when it cannot tell. */
  readonly watch: (handlers: { onForeign: () => void; onUnclear: () => void }) => CommitWatch
  readonly known: KnownByFamily<NftablesPlan>
  /** The shortest time between two comparisons. */
  readonly tickMs: number
  /** Everything is compared this often even when nothing looks wrong. */
  readonly verifyEveryMs: () => number
}

/** Notices what others do to our tables while a mode runs. */
export interface Watcher {
  /** Wraps a writer, so that its transactions count as ours. */
  guarded(writer: RulesetWriter): RulesetWriter
  run(signal: AbortSignal): Promise<void>
}

/**
 * Notices foreign changes of our tables. A foreign transaction is seen as it happens and answered
 * with a full sync. The kernel is compared with the plan after events were lost, and now and then
 * in any case.
 */
export class Guard implements Watcher {
  readonly #deps: GuardDeps
  readonly #watch: CommitWatch
  #isUnclear = false

  constructor(deps: GuardDeps) {
    this.#deps = deps
    this.#watch = deps.watch({
      onForeign: () => this.#resync('somebody else changed table kube-proxy'),
      onUnclear: () => (this.#isUnclear = true),
    })
  }

  guarded(writer: RulesetWriter): RulesetWriter {
    return guardedBy(this.#watch, writer)
  }

  async run(signal: AbortSignal): Promise<void> {
    await Promise.all([this.#watch.run(signal), this.#verifyNowAndThen(signal)])
  }

  /** Compares kernel and plans once; asks for a full sync when they differ. */
  async verify(): Promise<void> {
    const { known, reader, context } = this.#deps
    for (const family of ipFamilies) {
      const plan = known[family].value
      if (!plan) continue
      try {
        const difference = await differenceFrom(plan, { reader, pause: () => setImmediate() })
        // A sync came in between, so the comparison means nothing and is done again later.
        if (known[family].value !== plan) this.#isUnclear = true
        else if (difference !== undefined) this.#resync(difference)
      } catch (error) {
        this.#isUnclear = true
        const kind = error instanceof KernelError ? error.kind : 'failed'
        context.log.debug({ family, kind, error: messageOf(error) }, 'could not verify nftables')
      }
    }
  }

  async #verifyNowAndThen(signal: AbortSignal): Promise<void> {
    let sinceMs = 0
    for (;;) {
      await pause(this.#deps.tickMs, signal)
      if (signal.aborted) return
      sinceMs += this.#deps.tickMs
      if (!this.#isUnclear && sinceMs < this.#deps.verifyEveryMs()) continue
      this.#isUnclear = false
      sinceMs = 0
      await this.verify()
    }
  }

  #resync(reason: string): void {
    reportForeign(this.#deps.context, reason)
  }
}

export function guardedBy(
  watch: Pick<CommitWatch, 'around'>,
  writer: RulesetWriter,
): RulesetWriter {
  return {
    name: writer.name,
    commit: (transaction) =>
      watch.around(() => writer.commit(transaction), transaction.commands.length),
    check: (transaction) => writer.check(transaction),
  }
}

export function reportForeign(context: ModeContext, reason: string): void {
  context.log.warn({ reason }, 'nftables rules were changed by somebody else')
  context.resync(reason, { full: true })
}

/**
 * Compares the kernel with a plan and returns the first fault, or undefined. A chain that is not in
 * the plan is no fault, because no rule of ours leads to it.
 */
async function differenceFrom(
  plan: NftablesPlan,
  deps: Pick<ComparisonDeps, 'reader' | 'pause'>,
): Promise<string | undefined> {
  try {
    for await (const difference of nftablesDifferences(plan, deps)) {
      const { place, expected, found, isHarmless = false, isWhole = false } = difference
      const where = placeText(place)
      if (isHarmless) return undefined
      if (isWhole) return `${where} is missing`
      if (expected === undefined) return `${where} has more than it should: ${found ?? ''}`
      return `${where} lacks ${expected}`
    }
    return undefined
  } catch (error) {
    if (error instanceof KernelError && error.kind === 'not-found') return 'the table is incomplete'
    throw error
  }
}
