/**
 * Tells a new connection from a packet that is sent again. Nobody answers a dropped packet, so TCP
 * sends it again for about two minutes. The attempts of the last one to two minutes are known, up
 * to a bound.
 */
export class Attempts {
  readonly #now: () => number
  #older = new Set<string>()
  #newer = new Set<string>()
  #turnAt: number

  /** `now` returns milliseconds. */
  constructor(now: () => number) {
    this.#now = now
    this.#turnAt = now() + turnMs
  }

  /** Returns false for an attempt that is known. */
  add(attempt: string): boolean {
    this.#turn()
    const isNew = !this.#newer.has(attempt) && !this.#older.has(attempt)
    // An attempt that goes on stays known, however long it takes.
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
