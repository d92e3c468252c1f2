/** Waiting times that double after each failure. Each is between half and all of its size. */
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
