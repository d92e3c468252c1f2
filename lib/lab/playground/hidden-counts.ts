/**
 * Takes the connections that the page makes for itself out of what the kernel counts. A rule or a
 * server that is written anew counts from zero, so earlier ones are no longer in its number.
 */
export class HiddenCounts {
  readonly #hidden = new Map<string, number>()
  /** Since the last reading. */
  readonly #fresh = new Map<string, number>()
  #last: Readonly<Record<string, number>> = {}

  /** One of our own connections passed these. */
  passed(keys: Iterable<string>): void {
    for (const key of keys) this.#fresh.set(key, (this.#fresh.get(key) ?? 0) + 1)
  }

  /** The numbers without our own connections. None may be under way while they are read. */
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
