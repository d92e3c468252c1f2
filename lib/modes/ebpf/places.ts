/** How long a freed place is not used again: a program that runs may still read it. */
export const quarantineMs = 1000

interface Freed {
  readonly first: number
  readonly at: number
}

/**
 * Gives out ranges of an array. A range that was given back is not used again for a while, because
 * a program may have read where the range is, and not yet what it holds.
 */
export class Places {
  readonly size: number
  readonly #now: () => number
  #end = 0
  /** By size: the ranges that were given back, the oldest first. */
  readonly #freed = new Map<number, Freed[]>()

  constructor(size: number, now: () => number) {
    this.size = size
    this.#now = now
  }

  /** The first place of a free range; undefined when there is none. */
  take(count: number): number | undefined {
    const size = roundedSize(count)
    const waiting = this.#freed.get(size)
    const oldest = waiting?.[0]
    if (oldest && this.#now() - oldest.at >= quarantineMs) {
      waiting.shift()
      return oldest.first
    }
    if (this.#end + size > this.size) return undefined
    const first = this.#end
    this.#end += size
    return first
  }

  giveBack(first: number, count: number): void {
    const size = roundedSize(count)
    const waiting = this.#freed.get(size) ?? []
    waiting.push({ first, at: this.#now() })
    this.#freed.set(size, waiting)
  }
}

/** Rounds to few sizes, so that a range that was given back fits later requests. */
export function roundedSize(count: number): number {
  return count <= 2 ? count : Math.ceil(count / 4) * 4
}
