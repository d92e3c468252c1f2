/**
 * Tells a new connection from a packet that is sent again, because nobody answers what is dropped:
 * TCP tries for about two minutes. As many are known as came in one to two minutes, up to a bound.
 */
export class Attempts {
  readonly #now: () => number
  #older = new Set<string>()
  #newer = new Set<string>()
  #turnAt: number

  /** `now`: in milliseconds. */
  constructor(now: () => number) {
    this.#now = now
    this.#turnAt = now() + turnMs
  }

  /** Returns false for what was added a while ago. */
  add(attempt: string): boolean {
    this.#turn()
    const isNew = !this.#newer.has(attempt) && !this.#older.has(attempt)
    // What goes on is kept, however long it takes.
    this.#newer.add(attempt)
    return isNew
  }

  #turn(): void {
    const now = this.#now()
    if (now < this.#turnAt && this.#newer.size < mostAttempts) return
    this.#older = this.#newer
    this.#newer = new Set()
    this.#turnAt = now + turnMs
  }
}

/** The last pause between two packets of TCP is about this long. */
const turnMs = 64_000
const mostAttempts = 16_384
