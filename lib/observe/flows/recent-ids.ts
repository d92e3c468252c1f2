/**
 * The connections of the last moments. With them it is known which of the connections that the
 * kernel lists have been counted already.
 */
export class RecentIds {
  readonly #now: () => number
  #older = new Set<number>()
  #newer = new Set<number>()
  /** When each of the two begins; all ids after `since` are known. */
  #olderFrom: number
  #newerFrom: number
  #isHeld = false

  constructor(now: () => number) {
    this.#now = now
    this.#olderFrom = this.#newerFrom = now() + 1
  }

  /** Returns false for an id that was added a moment ago. */
  add(id: number): boolean {
    this.#turn()
    // V8 keeps a signed number of 32 bits in place, and others as objects.
    const key = id | 0
    if (this.#newer.has(key) || this.#older.has(key)) return false
    this.#newer.add(key)
    return true
  }

  /** The connection is over, and the kernel may give its id to another one. */
  forget(id: number): void {
    const key = id | 0
    if (!this.#newer.delete(key)) this.#older.delete(key)
  }

  /** All ids that were added since this time are known, in ms since 1970. */
  get since(): number {
    this.#turn()
    return this.#olderFrom
  }

  /** Forgets nothing until it is called with false. */
  hold(isHeld: boolean): void {
    this.#turn()
    this.#isHeld = isHeld
  }

  ids(): readonly number[] {
    return [...this.#older, ...this.#newer]
  }

  #turn(): void {
    if (this.#isHeld) return
    // The clock has whole milliseconds, and what began in this one may have been heard before.
    const now = this.#now() + 1
    // A clock that was set back starts anew.
    if (now >= this.#newerFrom && now - this.#newerFrom < turnMs) return
    this.#older = this.#newer
    this.#olderFrom = this.#newerFrom
    this.#newer = new Set()
    this.#newerFrom = now
  }
}

const turnMs = 2000
