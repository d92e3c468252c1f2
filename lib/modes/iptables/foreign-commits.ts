/**
 * Tells whether others wrote to nf_tables: the kernel counts all transactions of the network
 * namespace, and we count ours. Costs one small question, and lists nothing.
 */
export class ForeignCommits {
  readonly #generation: (() => number) | undefined
  #own = 0

  /** Without a generation, as with the legacy backend, it cannot tell. */
  constructor(generation?: () => number) {
    this.#generation = generation
  }

  /** The same number twice: nobody else committed in between. Undefined: no telling. */
  get mark(): number | undefined {
    return this.#generation && this.#generation() - this.#own
  }

  /** Does work that commits at most so many times; a transaction that changes nothing is none. */
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
