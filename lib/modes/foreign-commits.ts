/**
 * Tells whether others wrote to nf_tables: the kernel counts all transactions of the network
 * namespace, and we count ours. A look is one small request that lists nothing.
 */
export class ForeignCommits {
  readonly #generation: (() => number) | undefined
  #own = 0

  /** The legacy backend has no generation, so nothing can be told there. */
  constructor(generation?: () => number) {
    this.#generation = generation
  }

  /** Nobody else committed between two equal numbers. Undefined where that cannot be told. */
  get mark(): number | undefined {
    return this.#generation && this.#generation() - this.#own
  }

  /** Does work that commits at most `mostCommits` times. An empty transaction does not count. */
  async around<T>(mostCommits: number, work: () => Promise<T>): Promise<T> {
    const before = this.#generation?.() ?? 0
    try {
      return await work()
    } finally {
      const after = this.#generation?.() ?? 0
      this.#own += Math.min(after - before, mostCommits)
    }
  }
}
