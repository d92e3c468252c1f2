/**
 * Subtracts the page's own connections from the numbers of the kernel. A rule or a server that is
 * written anew counts from zero, so earlier connections are no longer in its number.
 */
export class HiddenCounts {
  readonly #hidden = new Map<string, number>()
  /** Since the last reading. */
  readonly #fresh = new Map<string, number>()
  #last: Readonly<Record<string, number>> = {}

  /** Notes the counters that one of our own connections has passed. */
  passed(keys: Iterable<string>): void {
    for (const key of keys) this.#fresh.set(key, (this.#fresh.get(key) ?? 0) + 1)
  }

  /**
   * The numbers without our own connections. No such connection may be open while they are read.
   */
  without(counts: Readonly<Record<string, number>>): Record<string, number> {
    const shown = Object.entries(counts).map(([key, count]) => {
      const fresh = this.#fresh.get(key) ?? 0
      const isNew = count < (this.#last[key] ?? 0) + fresh
      const hidden = fresh + (isNew ? 0 : (this.#hidden.get(key) ?? 0))
      this.#hidden.set(key, hidden)
      this.#fresh.delete(key)
      return [key, Math.max(0, count - hidden)] as const
    })
    this.#last = { ...this.#last, ...counts }
    return Object.fromEntries(shown)
  }
}
