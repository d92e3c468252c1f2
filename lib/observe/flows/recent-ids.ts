/**
 * The connections of the last moments. With them it is known which of the connections that the
 * kernel lists have been counted already. Usually nobody asks, so each is only noted down, and
 * looked up in the time around a reading of the kernel's table that counts.
 */
export class RecentIds {
  readonly #now: () => number
  #older: Notes
  #newer: Notes
  /** Those of both notes; undefined while nothing is looked up. */
  #known: Set<number> | undefined
  #isHeld = false
  /** An id that was added while it was held may be told once more, as long as it is in the notes. */
  #turnsToKnow = 0

  constructor(now: () => number) {
    this.#now = now
    this.#older = new Notes(now() + 1)
    this.#newer = new Notes(now() + 1)
  }

  /** Returns false for an id that was added a moment ago, where ids are looked up. */
  add(id: number): boolean {
    this.#turn()
    if (this.#known?.has(keyOf(id))) return false
    this.#known?.add(keyOf(id))
    this.#newer.add(id >>> 0)
    return true
  }

  /** The connection is over, and the kernel may give its id to another one. */
  forget(id: number): void {
    this.#known?.delete(keyOf(id))
    this.#newer.add(endOf(id >>> 0))
  }

  /** All ids that were added since this time are known, in ms since 1970. */
  get since(): number {
    this.#turn()
    return this.#older.from
  }

  /** Looks up ids, and forgets none, until it is called with false. */
  hold(isHeld: boolean): void {
    this.#turn()
    this.#isHeld = isHeld
    this.#turnsToKnow = 2
    if (isHeld) this.#known ??= new Set(this.ids())
  }

  /** As signed numbers of 32 bits; `add` takes them, too. */
  ids(): readonly number[] {
    const ids = new Set<number>()
    for (const notes of [this.#older, this.#newer]) notes.replay(ids)
    return [...ids]
  }

  #turn(): void {
    if (this.#isHeld) return
    // The clock has whole milliseconds, and what began in this one may have been heard before.
    const now = this.#now() + 1
    // A clock that was set back starts anew.
    if (now >= this.#newer.from && now - this.#newer.from < turnMs) return
    const unused = this.#older
    this.#older = this.#newer
    this.#newer = unused
    unused.begin(now)
    if (this.#known && --this.#turnsToKnow <= 0) this.#known = undefined
  }
}

/** V8 keeps a signed number of 32 bits in place, and others as objects. */
const keyOf = (id: number) => id | 0

/** Notes have ids without a sign; what has one is the end of a connection. */
const endOf = (id: number) => -1 - id

/** Begins and ends in their order, in memory that is used again. */
class Notes {
  /** When they begin. */
  from: number
  #entries = new Float64Array(1024)
  #count = 0

  constructor(from: number) {
    this.from = from
  }

  begin(from: number): void {
    this.from = from
    this.#count = 0
  }

  add(entry: number): void {
    if (this.#count === this.#entries.length) {
      const more = new Float64Array(2 * this.#count)
      more.set(this.#entries)
      this.#entries = more
    }
    this.#entries[this.#count++] = entry
  }

  replay(ids: Set<number>): void {
    for (const entry of this.#entries.subarray(0, this.#count)) {
      if (entry >= 0) ids.add(keyOf(entry))
      else ids.delete(keyOf(endOf(entry)))
    }
  }
}

const turnMs = 2000
