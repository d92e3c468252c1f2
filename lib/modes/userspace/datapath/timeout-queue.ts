/** What can wait in a {@link TimeoutQueue}; in one at a time. */
export interface Timed {
  /** Set by the queue. */
  deadline: number
}

/**
 * Time-outs that all take equally long: whoever came first is due first, so a Set in order of
 * arrival does, and one timer serves them all.
 */
export class TimeoutQueue<T extends Timed> {
  readonly #durationMs: number
  readonly #now: () => number
  readonly #expire: (item: T) => void
  readonly #waiting = new Set<T>()
  #timer: NodeJS.Timeout | undefined

  constructor(durationMs: number, now: () => number, expire: (item: T) => void) {
    this.#durationMs = durationMs
    this.#now = now
    this.#expire = expire
  }

  add(item: T): void {
    item.deadline = this.#now() + this.#durationMs
    this.#waiting.add(item)
    if (!this.#timer) this.#arm(this.#durationMs)
  }

  delete(item: T): void {
    this.#waiting.delete(item)
  }

  /** The timer is left alone when items leave: it finds nothing due, which is cheaper. */
  #arm(delayMs: number): void {
    this.#timer = setTimeout(() => this.#sweep(), delayMs)
    this.#timer.unref()
  }

  #sweep(): void {
    this.#timer = undefined
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
