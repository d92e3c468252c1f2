/**
 * Tells whether others wrote to nf_tables: the kernel counts all transactions of the network
 * namespace, and we count ours. A look is one small request that lists nothing.
 */
export class ForeignCommits {
  readonly #generation: (() => number) | undefined
  #own = 0
  /** Our own writes that still run: both IP families may write at once. */
  #working = 0
  #before = 0
  #mostCommits = 0

  /** The legacy backend has no generation, so nothing can be told there. */
  constructor(generation?: () => number) {
    this.#generation = generation
  }

  /**
   * Nobody else committed between two equal numbers. Undefined where that cannot be told: without a
   * generation, and while work of ours has committed but is not counted yet.
   */
  get mark(): number | undefined {
    if (!this.#generation || this.#working > 0) return undefined
    return this.#generation() - this.#own
  }

  /** Does work that commits at most `mostCommits` times. An empty transaction does not count. */
  async around<T>(mostCommits: number, work: () => Promise<T>): Promise<T> {
    if (this.#working === 0) {
      // It throws where rights were taken away; then no work is under way.
      this.#before = this.#generation?.() ?? 0
      this.#mostCommits = 0
    }
    this.#working++
    this.#mostCommits += mostCommits
    try {
      return await work()
    } finally {
      if (--this.#working === 0) {
        const commits = (this.#generation?.() ?? 0) - this.#before
        this.#own += Math.min(commits, this.#mostCommits)
      }
    }
  }
}
