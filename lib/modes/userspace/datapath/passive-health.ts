/**
 * Endpoints whose dials failed of late. Kernel modes cannot see that; here a failed endpoint is
 * tried last for a while, twice as long each time, and one success forgives everything.
 */
export class PassiveHealth {
  readonly #failing = new Map<string, FailureRecord>()

  get size(): number {
    return this.#failing.size
  }

  isSuspect(endpoint: string, now: number): boolean {
    const record = this.#failing.get(endpoint)
    return record !== undefined && now < record.until
  }

  /**
   * Call when a suspect whose time is over gets its next connection: until that one is decided,
   * the others keep away, lest a burst of clients waits for a dead endpoint.
   */
  probe(endpoint: string, now: number): void {
    const record = this.#failing.get(endpoint)
    if (!record) return
    record.until = now + firstPenaltyMs
    record.isProbed = true
  }

  failed(endpoint: string, now: number): void {
    const record = this.#failing.get(endpoint) ?? { failures: 0, until: 0, isProbed: true }
    // Connections that were under way together count as one failure.
    if (!record.isProbed && now < record.until) return
    record.until = now + Math.min(firstPenaltyMs * 2 ** record.failures, longestPenaltyMs)
    record.failures++
    record.isProbed = false
    this.#failing.set(endpoint, record)
  }

  succeeded(endpoint: string): void {
    if (this.#failing.size > 0) this.#failing.delete(endpoint)
  }

  forget(endpoints: ReadonlySet<string>): void {
    for (const endpoint of endpoints) this.#failing.delete(endpoint)
  }
}

interface FailureRecord {
  failures: number
  /** Tried last until then. */
  until: number
  isProbed: boolean
}

const firstPenaltyMs = 1000
const longestPenaltyMs = 30_000
