/** Ports of `--proxy-port-range`. The start is random: after a restart old ports may be in use. */
export class PortAllocator {
  readonly #from: number
  readonly #size: number
  readonly #random: () => number
  readonly #taken = new Set<number>()

  constructor(range: { readonly from: number; readonly to: number }, random = Math.random) {
    this.#from = range.from
    this.#size = range.to - range.from + 1
    this.#random = random
  }

  /** Undefined when every port of the range is taken or in `avoid`. */
  take(avoid: ReadonlySet<number>): number | undefined {
    const start = Math.floor(this.#random() * this.#size)
    for (let step = 0; step < this.#size; step++) {
      const port = this.#from + ((start + step) % this.#size)
      if (this.#taken.has(port) || avoid.has(port)) continue
      this.#taken.add(port)
      return port
    }
    return undefined
  }

  /** Takes a port that a listener already has; false when it is not in the range. */
  keep(port: number): boolean {
    if (port < this.#from || port >= this.#from + this.#size) return false
    this.#taken.add(port)
    return true
  }

  release(port: number): void {
    this.#taken.delete(port)
  }
}
