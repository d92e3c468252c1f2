import { afterReading } from '../../../async.js'

/** An item of a {@link TimeoutQueue}. It can be in one queue only. */
export interface Timed {
  /** Set by the queue. */
  deadline: number
}

/**
 * Time-outs of equal length. The item that was added first is due first, so a Set in order of
 * arrival and one timer are enough.
 */
export class TimeoutQueue<T extends Timed> {
  readonly #durationMs: number
  readonly #now: () => number
  readonly #expire: (item: T) => void
  readonly #waiting = new Set<T>()
  #isArmed = false

  constructor(durationMs: number, now: () => number, expire: (item: T) => void) {
    this.#durationMs = durationMs
    this.#now = now
    this.#expire = expire
  }

  add(item: T): void {
    item.deadline = this.#now() + this.#durationMs
    this.#waiting.add(item)
    if (!this.#isArmed) this.#arm(this.#durationMs)
  }

  delete(item: T): void {
    this.#waiting.delete(item)
  }

  /** The timer stays when items are deleted: a sweep that finds nothing due is cheaper. */
  #arm(delayMs: number): void {
    this.#isArmed = true
    afterReading(delayMs, () => this.#sweep())
  }

  #sweep(): void {
    this.#isArmed = false
    const now = this.#now()
    for (const item of this.#waiting) {
      if (item.deadline > now) {
        this.#arm(Math.max(item.deadline - now, 1))
        return
      }
      this.#waiting.delete(item)
      this.#expire(item)
    }
  }
}
