import { Bell, pause, pauseOfCost } from '../async.js'

/** A clock. Tests pass one that they advance by hand. */
export interface Clock {
  /** Milliseconds of a clock that nobody can set. */
  now(): number
  /** Resolves after `ms`, or at once when the bell rings; never rejects. */
  sleep(ms: number, bell: Bell): Promise<void>
}

export const systemClock: Clock = {
  now: () => performance.now(),
  sleep: (ms, bell) => pause(ms, undefined, bell),
}

/** A quiet time makes later pauses shorter by at most this. So one slow sync delays nobody. */
const savedPauseMs = 200

/**
 * A change that a sync has just missed waits for that sync, for the pause and for its own sync. The
 * pause never makes this longer, so a change is in the kernel within a second if syncs are quick.
 */
const longestWaitMs = 900

/** A pause of this length may follow even a sync that takes longer than the longest wait. */
const alwaysAllowedMs = 250

/** Each sync counts for an eighth of the usual cost. */
const weightOfLast = 1 / 8

export interface SyncIntervals {
  /**
   * The least time between the end of one sync and the start of the next (R03). `measured`: none is
   * configured, so it follows from the cost of the last syncs.
   */
  readonly minIntervalMs: number | 'measured'
  /** A sync runs at least this often, even without a request. */
  readonly maxIntervalMs: number
  /** A failed sync runs again after this time, even without a request. */
  readonly retryIntervalMs: number
}

interface SyncLoopOptions extends SyncIntervals {
  /** Called when a sync throws. */
  readonly onError: (error: unknown) => void
  readonly clock?: Clock
  /** The processor time used so far. Without it, the whole duration of a sync is its cost. */
  readonly processorMs?: () => number | undefined
}

/** Decides when to sync: soon after a request, not too often, and again after a failure (R03, R04). */
export class SyncLoop {
  readonly #options: SyncLoopOptions
  readonly #clock: Clock
  readonly #processorMs: () => number | undefined
  #intervals: SyncIntervals
  readonly #requested = new Bell()
  /** Rung when no sync shall wait for the end of a pause. */
  readonly #resumed = new Bell()
  /** The pause that past syncs still need; negative if a quiet time makes later pauses shorter. */
  #owedMs = 0
  /** The cost of the last syncs; undefined before the first. */
  #usualCostMs: number | undefined

  constructor(options: SyncLoopOptions) {
    this.#options = options
    this.#intervals = checked(options)
    this.#clock = options.clock ?? systemClock
    this.#processorMs = options.processorMs ?? (() => undefined)
  }

  /** Ends the pause that the old intervals have set. The new ones count from the next sync on. */
  setIntervals(intervals: SyncIntervals): void {
    this.#intervals = checked(intervals)
    this.#resumed.ring()
  }

  /** Requests a sync. Many requests before it starts make one sync (R12). */
  request(): void {
    this.#requested.ring()
  }

  /**
   * Syncs until the signal. The first sync waits for a request. A sync that runs at the signal is
   * finished. `sync` resolves to whether everything succeeded; a rejection counts as a failure. The
   * next sync begins when `whenQuiet` resolves. That wait is no cost of a sync.
   */
  async run(
    sync: () => Promise<boolean>,
    signal: AbortSignal,
    whenQuiet: () => Promise<void> = () => Promise.resolve(),
  ): Promise<void> {
    if (signal.aborted) return
    // One listener for all waits: adding and removing one costs as much as a wait.
    const stop = () => {
      this.#resumed.ring()
      this.#requested.ring()
    }
    signal.addEventListener('abort', stop, { once: true })
    await this.#clock.sleep(Infinity, this.#requested)
    let ended = this.#clock.now()
    while (!signal.aborted) {
      this.#requested.silence()
      this.#resumed.silence()
      this.#owedMs = Math.max(this.#owedMs - (this.#clock.now() - ended), -savedPauseMs)
      const started = this.#clock.now()
      const usedBefore = this.#processorMs()
      const succeeded = await this.#syncOnce(sync)
      const { maxIntervalMs, retryIntervalMs } = this.#intervals
      const usedMs = (this.#processorMs() ?? Infinity) - (usedBefore ?? 0)
      ended = this.#clock.now()
      // The processor time may include a program that was started for something else and ends now.
      const durationMs = ended - started
      const pauseMs = this.#pauseAfter(Math.min(usedMs, durationMs), durationMs)
      await this.#clock.sleep(pauseMs, this.#resumed)
      const idleMs = succeeded ? maxIntervalMs : Math.min(retryIntervalMs, maxIntervalMs)
      if (idleMs > pauseMs) await this.#clock.sleep(idleMs - pauseMs, this.#requested)
      await whenQuiet()
    }
  }

  /**
   * What one slow sync owes is spread over several pauses: a change that comes after it waits as
   * long as others.
   */
  #pauseAfter(costMs: number, durationMs: number): number {
    const { minIntervalMs, maxIntervalMs } = this.#intervals
    if (minIntervalMs !== 'measured') return minIntervalMs
    const cost = Math.max(0, costMs)
    const usual = this.#usualCostMs ?? cost
    this.#usualCostMs = usual + (cost - usual) * weightOfLast
    const longestPauseMs = Math.max(longestWaitMs - 2 * durationMs, alwaysAllowedMs)
    this.#owedMs = Math.min(this.#owedMs + pauseOfCost * cost, longestPauseMs, maxIntervalMs)
    return Math.max(0, Math.min(this.#owedMs, pauseOfCost * this.#usualCostMs))
  }

  async #syncOnce(sync: () => Promise<boolean>): Promise<boolean> {
    try {
      return await sync()
    } catch (error) {
      this.#options.onError(error)
      return false
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
