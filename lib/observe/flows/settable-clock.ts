interface Clocks {
  /** The time in ms since 1970. Somebody may set this clock. */
  readonly now: () => number
  /** Milliseconds of a clock that nobody can set. */
  readonly steady: () => number
}

/** Both clocks have parts of milliseconds, which the first one does not tell. */
const toleranceMs = 20

/**
 * Notices that the clock of the node was set. The kernel tells by this clock when a connection
 * began, so how long a connection lasted is not known if the clock was set meanwhile.
 */
export class SettableClock {
  readonly #clocks: Clocks
  /** The difference of both clocks is between these. */
  #least: number
  #most: number
  /** What began until this time may have begun before the clock was set. */
  #doubtedUntil = -Infinity
  #lookedAt = 0

  constructor(clocks: Clocks) {
    this.#clocks = clocks
    this.#least = -Infinity
    this.#most = Infinity
    this.look()
  }

  /** The time of the last look. */
  get lookedAt(): number {
    return this.#lookedAt
  }

  look(): void {
    const { now, steady } = this.#clocks
    const before = steady()
    const at = now()
    // This thread may have been held up between both clocks.
    const [least, most] = [at - steady(), at - before]
    const forward = least - this.#most
    const back = this.#least - most
    if (forward > toleranceMs) this.#doubt(at)
    // What began shortly before has a time that comes once more.
    if (back > toleranceMs) this.#doubt(at + back + toleranceMs)
    this.#least = least
    this.#most = most
    this.#lookedAt = at
  }

  /** The clock may be set again before the last doubt has ended. */
  #doubt(until: number): void {
    this.#doubtedUntil = Math.max(this.#doubtedUntil, until)
  }

  /** Undefined if the clock may have been set since then. */
  msSince(startedAt: number): number | undefined {
    if (startedAt <= this.#doubtedUntil) return undefined
    return Math.max(0, this.#lookedAt - startedAt)
  }
}
