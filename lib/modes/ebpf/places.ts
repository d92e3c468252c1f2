/** How long a place stays empty before it is used again: programs may still be on their way there. */
export const quarantineMs = 1000

interface Freed {
  readonly first: number
  readonly at: number
}

/**
 * Gives out ranges of an array. A range that was given back is not used again for a while, because
 * a program may have read where it is and not yet what it holds.
 */
export class Places {
  readonly size: number
  readonly #now: () => number
  #end = 0
  /** By the size of the range, the one that was given back first in front. */
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

/** Few sizes, so that what was given back fits what is asked for next. */
export function roundedSize(count: number): number {
  return count <= 2 ? count : Math.ceil(count / 4) * 4
}
