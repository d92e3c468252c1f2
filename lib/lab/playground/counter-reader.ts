import { pause } from '../../async.js'
import { countersOf, type Counted, HiddenCounts } from './counters.js'
import { noCounters, type CountersView } from '../../page/view.js'
import type { Gauge } from './node-gauge.js'

/** Reading starts a process in some modes, and no user reads faster than this. */
const pauseMs = 400
/** Some numbers arrive late: a proxy's workers report theirs about once a second. */
const lateMs = 1200

/** Reads the counters of the node about as often as the rest of the page changes. */
export class CounterReader {
  readonly #gauge: Gauge
  readonly #changed: () => void
  readonly #stop = new AbortController()
  #view: CountersView = noCounters
  #wanted: Counted | undefined
  #reading: Promise<void> | undefined
  #hidden = new HiddenCounts()
  #mode = ''
  /** Whether the page makes connections for itself now. */
  #isProbing = false
  /** How many times the page began to make such connections. */
  #probings = 0

  constructor(gauge: Gauge, changed: () => void) {
    this.#gauge = gauge
    this.#changed = changed
  }

  get view(): CountersView {
    return this.#view
  }

  /** Reads soon after a change; many calls make one reading. */
  refresh(counted: Counted): void {
    this.#wanted = counted
    this.#reading ??= this.#read()
  }

  /**
   * Makes connections that are not shown. `work` reports the mode and the counters of each to
   * `passed`. Numbers that are read meanwhile are dropped, because they may include a connection
   * that was not reported yet.
   */
  async unseen<T>(
    work: (passed: (mode: string, keys: Iterable<string>) => void) => Promise<T>,
  ): Promise<T> {
    this.#isProbing = true
    this.#probings++
    try {
      return await work((mode, keys) => this.#hiddenIn(mode).passed(keys))
    } finally {
      this.#isProbing = false
    }
  }

  async close(): Promise<void> {
    this.#stop.abort()
    await this.#reading
  }

  async #read(): Promise<void> {
    const { signal } = this.#stop
    while (this.#wanted && !signal.aborted) {
      const wanted = this.#wanted
      await this.#readOnce(wanted)
      await pause(pauseMs, signal)
      if (this.#wanted !== wanted) continue
      await pause(lateMs, signal)
      if (this.#wanted !== wanted) continue
      await this.#readOnce(wanted)
      if (this.#wanted === wanted) this.#wanted = undefined
    }
    this.#reading = undefined
  }

  async #readOnce(wanted: Counted): Promise<void> {
    if (this.#isProbing) return
    const before = this.#probings
    const raw = await this.#gauge.ask({ ask: 'count', mode: wanted.mode })
    if (this.#probings !== before) return
    const next = countersOf(wanted, raw, this.#hiddenIn(wanted.mode))
    if (JSON.stringify(next) === JSON.stringify(this.#view)) return
    this.#view = next
    this.#changed()
  }

  /** Begins anew when the mode changes, because the rules of another mode count from zero. */
  #hiddenIn(mode: string): HiddenCounts {
    if (this.#mode !== mode) this.#hidden = new HiddenCounts()
    this.#mode = mode
    return this.#hidden
  }
}
