import { pause } from '../async.js'

/** Time that passes. Tests give a clock that they advance by hand. */
export interface Clock {
  /** Milliseconds that never jump, whatever the time of day is set to. */
  now(): number
  /** Resolves after `ms`, or at once when the signal is aborted; never rejects. */
  sleep(ms: number, signal: AbortSignal): Promise<void>
}

export const systemClock: Clock = { now: () => performance.now(), sleep: pause }

/** Syncs take at most a tenth of a core: each is followed by nine times as long without one. */
const pauseOfCost = 9

/** Quiet times save up so much of pauses to come. One slow sync among quick ones then delays nobody. */
const savedPauseMs = 200

/** However much a sync costs, a change waits no longer than this for the next one to begin. */
const longestPauseMs = 1000

export interface SyncIntervals {
  /**
   * The least time between the end of one sync and the start of the next (R03). `measured`: nobody
   * has said one, so it follows from what the last syncs took.
   */
  readonly minIntervalMs: number | 'measured'
  /** A sync runs at least this often, even without a request. */
  readonly maxIntervalMs: number
  /** A failed sync runs again after this time, even without a request. */
  readonly retryIntervalMs: number
}

export interface SyncLoopOptions extends SyncIntervals {
  /** A sync threw. */
  readonly onError: (error: unknown) => void
  readonly clock?: Clock
  /** For how long processors have worked for syncs so far; without it, all their time is a cost. */
  readonly processorMs?: () => number | undefined
}

/** Decides when to sync: soon after a request, not too often, and again after a failure (R03, R04). */
export class SyncLoop {
  readonly #options: SyncLoopOptions
  readonly #clock: Clock
  readonly #processorMs: () => number | undefined
  #intervals: SyncIntervals
  #isRequested = false
  #wake = new AbortController()
  /** Pauses that syncs have yet to be followed by; less than none when quiet times saved some up. */
  #owedMs = 0

  constructor(options: SyncLoopOptions) {
    this.#options = options
    this.#intervals = checked(options)
    this.#clock = options.clock ?? systemClock
    this.#processorMs = options.processorMs ?? (() => undefined)
  }

  /** From the next sync on. */
  setIntervals(intervals: SyncIntervals): void {
    this.#intervals = checked(intervals)
  }

  /** Requests a sync. Many requests before it starts make one sync (R12). */
  request(): void {
    if (this.#isRequested) return
    this.#isRequested = true
    // With a reason of its own, because the usual one is an error with a stack.
    this.#wake.abort('requested')
  }

  /**
   * Syncs until the signal, for the first time after the first request. A running sync is finished.
   * `sync` resolves to whether everything succeeded; a rejection counts as a failure.
   */
  async run(sync: () => Promise<boolean>, signal: AbortSignal): Promise<void> {
    await this.#wait(Infinity, signal)
    let ended = this.#clock.now()
    while (!signal.aborted) {
      this.#isRequested = false
      this.#owedMs = Math.max(this.#owedMs - (this.#clock.now() - ended), -savedPauseMs)
      const started = this.#clock.now()
      const usedBefore = this.#processorMs()
      const succeeded = await this.#syncOnce(sync)
      const { maxIntervalMs, retryIntervalMs } = this.#intervals
      const usedMs = (this.#processorMs() ?? Infinity) - (usedBefore ?? 0)
      ended = this.#clock.now()
      // A program that was started for something else may end meanwhile.
      const pauseMs = this.#pauseAfter(Math.min(usedMs, ended - started))
      await this.#clock.sleep(pauseMs, signal)
      const idleMs = succeeded ? maxIntervalMs : Math.min(retryIntervalMs, maxIntervalMs)
      await this.#wait(idleMs - pauseMs, signal)
    }
  }

  #pauseAfter(costMs: number): number {
    const { minIntervalMs, maxIntervalMs } = this.#intervals
    if (minIntervalMs !== 'measured') return minIntervalMs
    const owedMs = this.#owedMs + pauseOfCost * Math.max(0, costMs)
    this.#owedMs = Math.min(owedMs, longestPauseMs, maxIntervalMs)
    return Math.max(0, this.#owedMs)
  }

  async #syncOnce(sync: () => Promise<boolean>): Promise<boolean> {
    try {
      return await sync()
    } catch (error) {
      this.#options.onError(error)
      return false
    }
  }

  /** Waits for a request, but not longer than `ms`. */
  async #wait(ms: number, signal: AbortSignal): Promise<void> {
    this.#wake = new AbortController()
    if (this.#isRequested || ms <= 0) return
    const either = AbortSignal.any([signal, this.#wake.signal])
    if (ms !== Infinity) await this.#clock.sleep(ms, either)
    else if (!either.aborted) {
      await new Promise((resolve) => either.addEventListener('abort', resolve, { once: true }))
    }
  }
}

function checked(intervals: SyncIntervals): SyncIntervals {
  const { minIntervalMs, maxIntervalMs } = intervals
  if (minIntervalMs !== 'measured' && maxIntervalMs < minIntervalMs) {
    throw new RangeError('the maximum sync interval is shorter than the minimum')
  }
  return intervals
}
