/** Waiting times that double after each failure. Chance makes each shorter, by half at most. */
export class Backoff {
  readonly #firstMs: number
  readonly #random: () => number
  #failures = 0

  constructor(firstMs: number, random: () => number) {
    this.#firstMs = firstMs
    this.#random = random
  }

  /** How long to wait after one more failure. */
  next(longestMs: number): number {
    const full = Math.min(longestMs, this.#firstMs * 2 ** Math.min(this.#failures, 20))
    this.#failures++
    return full * (0.5 + this.#random() / 2)
  }

  reset(): void {
    this.#failures = 0
  }
}

/** Answers of a server that may take the same request later. */
export const passingStatuses: ReadonlySet<number> = new Set([429, 502, 503, 504])

/**
 * The longest wait that a server, or a proxy before it, can ask for. A node whose rules are out of
 * date must not sleep for an hour. It is twice the longest wait that this program chooses by
 * itself. A server that sheds load asks for seconds, and one small list a minute costs it nothing.
 */
export const longestRetryAfterMs = 60_000

/** The header Retry-After, seconds or a date, in ms from now; 0 where it makes no sense. */
export function parseRetryAfter(header: string | undefined, now: number): number {
  const text = header?.trim() ?? ''
  // Dates have letters. Date.parse alone takes "-5" and "1.5" for years and months.
  const ms = /^\d+$/.test(text)
    ? Number(text) * 1000
    : /^[A-Za-z]/.test(text)
      ? Date.parse(text) - now
      : 0
  return Number.isNaN(ms) ? 0 : Math.min(Math.max(ms, 0), longestRetryAfterMs)
}
