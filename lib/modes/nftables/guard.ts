import { setImmediate } from 'node:timers/promises'
import { pause, pauseOfCost } from '../../async.js'
import { KernelError, messageOf } from '../../errors.js'
import type { RulesetWriter } from '../../kernel/nftables/nft.js'
import type { RulesetReader } from '../../kernel/nftables/reader.js'
import type { CommitWatch } from '../../kernel/nftables-netlink/commit-watch.js'
import { ipFamilies } from '../../state/ip.js'
import type { KnownByFamily } from '../known.js'
import { placeText } from '../../kernel/place.js'
import type { ModeContext } from '../mode.js'
import type { NftablesPlan } from './plan.js'
import { nftablesDifferences, type ComparisonDeps, type PartDifference } from './differences.js'
import type { Difference } from '../difference.js'

export interface GuardDeps {
  readonly context: ModeContext
  readonly reader: RulesetReader
  /** Starts a watch. It calls a handler when others commit, and when it cannot tell. */
  readonly watch: (handlers: {
    onForeign: (who: string) => void
    onUnclear: () => void
  }) => CommitWatch
  readonly known: KnownByFamily<NftablesPlan>
  /** The shortest time between two comparisons. */
  readonly tickMs: number
  /** Everything is compared this often even when nothing looks wrong. */
  readonly verifyEveryMs: () => number
}

/** The most comparisons in a row because syncs changed what differed. */
const mostComparisons = 3

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
  #comparisons = 0

  constructor(deps: GuardDeps) {
    this.#deps = deps
    this.#watch = deps.watch({
      onForeign: (who) => reportForeign(this.#deps.context, who),
      onUnclear: () => (this.#isUnclear = true),
    })
  }

  guarded(writer: RulesetWriter): RulesetWriter {
    return {
      name: writer.name,
      commit: (transaction) =>
        this.#watch.around(() => writer.commit(transaction), transaction.commands.length),
      check: (transaction) => writer.check(transaction),
    }
  }

  async run(signal: AbortSignal): Promise<void> {
    await Promise.all([this.#watch.run(signal), this.#verifyNowAndThen(signal)])
  }

  /**
   * Compares kernel and plans once; asks for a full sync when they differ. Syncs go on meanwhile.
   * Parts that they change mean nothing in this comparison.
   */
  async verify(): Promise<void> {
    const { known, reader, context } = this.#deps
    let unsettled = 0
    for (const family of ipFamilies) {
      const before = await known[family].settled()
      if (!before) continue
      try {
        const faults = await faultsOf(before, { reader, pause: () => setImmediate() })
        const after = await known[family].settled()
        // Without knowledge of the kernel the next sync is a full one.
        if (!after) continue
        const real = faults.find((fault) => isLasting(fault, before, after))
        if (real) context.resync(faultText(real), { byOthers: true })
        else unsettled += faults.length
      } catch (error) {
        this.#isUnclear = true
        const kind = error instanceof KernelError ? error.kind : 'failed'
        context.log.debug({ family, kind, error: messageOf(error) }, 'could not verify nftables')
      }
    }
    // Under steady changes something is always in motion.
    if (unsettled === 0 || ++this.#comparisons === mostComparisons) this.#comparisons = 0
    else this.#isUnclear = true
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
      const began = performance.now()
      await this.verify()
      await pause(pauseOfCost * (performance.now() - began), signal)
    }
  }
}

export function reportForeign(context: ModeContext, who: string): void {
  context.resync(`${who} changed table kube-proxy`, { byOthers: true })
}

/** More faults say no more. */
const mostFaults = 1000

/**
 * Compares the kernel with a plan. A chain that is not in the plan is no fault if it has no hook,
 * because no rule of ours leads to it.
 */
async function faultsOf(
  plan: NftablesPlan,
  deps: Pick<ComparisonDeps, 'reader' | 'pause'>,
): Promise<readonly PartDifference[]> {
  const faults: PartDifference[] = []
  for await (const difference of nftablesDifferences(plan, deps)) {
    if (difference.isHarmless || faults.length === mostFaults) break
    faults.push(difference)
  }
  return faults
}

function faultText({ place, expected, found, isWhole }: Difference): string {
  const where = placeText(place)
  if (isWhole) return `${where} is missing`
  if (expected === undefined) return `${where} has more than it should: ${found ?? ''}`
  return `${where} lacks ${expected}`
}

/** Whether a fault is about something that no sync has changed between two plans. */
function isLasting({ key }: PartDifference, before: NftablesPlan, after: NftablesPlan): boolean {
  if (before === after) return true
  return key !== undefined && before.parts.get(key) === after.parts.get(key)
}
