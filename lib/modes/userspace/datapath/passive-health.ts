/**
 * Endpoints that failed recently: they could not be reached, or they accepted a connection and did
 * not serve it. Kernel modes cannot see that. A failed endpoint is tried last for some time. Each
 * further failure doubles this time, until the endpoint works.
 */
export class PassiveHealth {
  readonly #failing = new Map<string, FailureRecord>()

  isSuspect(endpoint: string, now: number): boolean {
    const record = this.#failing.get(endpoint)
    return record !== undefined && now < record.until
  }

  /**
   * Call when an endpoint gets a connection after its penalty. Until that connection succeeds or
   * fails, other clients are sent elsewhere: a burst of them would wait for a dead endpoint.
   */
  probe(endpoint: string, now: number): void {
    const record = this.#failing.get(endpoint)
    if (!record) return
    record.until = now + firstPenaltyMs
    record.isProbed = true
  }

  /** Whether the endpoint failed after it had accepted. Then a new accept proves nothing. */
  mustProve(endpoint: string): boolean {
    return this.#failing.get(endpoint)?.hadAccepted ?? false
  }

  failed(endpoint: string, now: number, hadAccepted = false): void {
    const fresh = { failures: 0, until: 0, isProbed: true, hadAccepted }
    const record = this.#failing.get(endpoint) ?? fresh
    // Connections that were dialed at the same time count as one failure.
    if (!record.isProbed && now < record.until) return
    record.until = now + Math.min(firstPenaltyMs * 2 ** record.failures, longestPenaltyMs)
    record.failures++
    record.isProbed = false
    record.hadAccepted = hadAccepted
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
  /** The endpoint is tried last until then. */
  until: number
  isProbed: boolean
  hadAccepted: boolean
}

const firstPenaltyMs = 1000
const longestPenaltyMs = 30_000

/** Errors of a socket of UDP that say that the endpoint refuses, or that no way leads to it. */
export const unreachable: ReadonlySet<string> = new Set([
  ...['ECONNREFUSED', 'EHOSTUNREACH', 'ENETUNREACH', 'EHOSTDOWN'],
  // These are told by routes that forbid or swallow packets.
  ...['EACCES', 'EINVAL'],
])
