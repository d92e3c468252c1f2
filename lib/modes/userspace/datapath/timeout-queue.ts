import { afterReading } from '../../../async.js'

/**
 * Time-outs of equal length. The item that was added first is due first, so a Map in order of
 * arrival and one timer are enough.
 */
export class TimeoutQueue<T> {
  readonly #durationMs: number
  readonly #now: () => number
  readonly #expire: (item: T) => void
  /** By item: when it is due. */
  readonly #waiting = new Map<T, number>()
  #isArmed = false

  constructor(durationMs: number, now: () => number, expire: (item: T) => void) {
    this.#durationMs = durationMs
    this.#now = now
    this.#expire = expire
  }

  add(item: T): void {
    this.#waiting.set(item, this.#now() + this.#durationMs)
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
    for (const [item, deadline] of this.#waiting) {
      if (deadline > now) {
        this.#arm(Math.max(deadline - now, 1))
        return
      }
      this.#waiting.delete(item)
      this.#expire(item)
    }
  }
}
