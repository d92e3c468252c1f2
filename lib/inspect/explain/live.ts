import { itemId, placeId, type Item } from '../../kernel/place.js'
import type { Difference } from '../../modes/difference.js'
import type { Hop, Way } from './packet.js'

/** The items of a plan that the kernel lacks, and the items that only the kernel has. */
export class LiveCheck {
  /** A difference of a whole table: nothing in it has an effect. */
  readonly #table: Difference | undefined
  /** Places that are missing with all of their content. */
  readonly #missingPlaces = new Set<string>()
  readonly #missingItems = new Set<string>()
  /** Texts of items that are only in the kernel, by place. */
  readonly #extra = new Map<string, string[]>()

  constructor(differences: readonly Difference[]) {
    this.#table = differences.find(({ place }) => place.kind === 'table')
    for (const { place, expected, item: text = expected, found, isWhole } of differences) {
      if (isWhole) this.#missingPlaces.add(placeId(place))
      else if (text !== undefined) this.#missingItems.add(itemId({ place, text }))
      if (found === undefined) continue
      const id = placeId(place)
      this.#extra.set(id, [...(this.#extra.get(id) ?? []), found])
    }
  }

  /** Whether an item of the plan, or a place as a whole, is not in force in the kernel. */
  lacks({ place, text }: Pick<Item, 'place'> & Partial<Item>): boolean {
    if (this.#table || this.#missingPlaces.has(placeId(place))) return true
    return text !== undefined && this.#missingItems.has(itemId({ place, text }))
  }

  get #lack(): string {
    const isOff = this.#table && !this.#table.isWhole
    return isOff
      ? `SWITCHED OFF: the table has ${this.#table.found ?? ''}`
      : 'MISSING: the kernel does not have this now'
  }

  /**
   * Notes about a hop; empty when the kernel has the same as the plan. What is too much in a place is
   * said once: `told` has the places where it was.
   */
  notes({ item, path }: Hop, told: Set<string>): readonly string[] {
    const place = path.at(-1)
    const id = place ? placeId(place) : ''
    const extra = told.has(id) ? [] : (this.#extra.get(id) ?? [])
    told.add(id)
    const more = extra.length - extraShown
    return [
      ...(item && this.lacks(item) ? [this.#lack] : []),
      ...extra.slice(0, extraShown).map((text) => `NOT OURS: the kernel has here too: ${text}`),
      ...(more > 0 ? [`NOT OURS: ${more} more`] : []),
    ]
  }
}

/** Somebody may have left thousands, which would hide the way. `diff` shows all. */
const extraShown = 3

/** Every hop with notes about the kernel. */
export function annotate(ways: readonly Way[], live: LiveCheck): readonly Way[] {
  return ways.map((way) => {
    const told = new Set<string>()
    const hops = way.hops.map((hop) => {
      const notes = live.notes(hop, told)
      return notes.length === 0 ? hop : { ...hop, notes }
    })
    return { ...way, hops }
  })
}
