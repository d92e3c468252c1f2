/**
 * The ids of the newest connections. They tell which connections in the kernel's table have been
 * counted already. Usually nobody asks, so an id is only noted. Ids are looked up only around a
 * reading of the table that counts connections.
 */
export class RecentIds {
  readonly #now: () => number
  #older: Notes
  #newer: Notes
  /** The ids of both notes; undefined while no id is looked up. */
  #known: Set<number> | undefined
  #isHeld = false
  /** The ids that an earlier process has counted, of connections that began until then. */
  #earlier: { readonly ids: ReadonlySet<number>; readonly until: number } | undefined
  /**
   * For so many turns after a hold ids are looked up: the kernel may report these connections
   * again.
   */
  #turnsToKnow = 0

  constructor(now: () => number) {
    this.#now = now
    this.#older = new Notes(now() + 1)
    this.#newer = new Notes(now() + 1)
  }

  /** Returns false for an id that was added a moment ago, if ids are looked up now. */
  add(id: number): boolean {
    this.#turn()
    if (this.#known?.has(keyOf(id))) return false
    this.#known?.add(keyOf(id))
    this.#newer.add(id >>> 0)
    return true
  }

  /** An earlier process has counted these ids, and was there until this time. */
  resume(ids: readonly number[], until: number): void {
    this.#earlier = { ids: new Set(ids.map(keyOf)), until }
  }

  /**
   * Whether the earlier process has counted a connection. A later one may have its id: the kernel
   * makes ids from ports and memory, and often gives the same one when a client's port comes again.
   */
  isOfEarlier(id: number, startedAt: number): boolean {
    const earlier = this.#earlier
    return earlier !== undefined && startedAt <= earlier.until && earlier.ids.has(keyOf(id))
  }

  /** The connection is over, and the kernel may give its id to another one. */
  forget(id: number): void {
    this.#known?.delete(keyOf(id))
    this.#newer.add(endOf(id >>> 0))
  }

  /** The time, in ms since 1970, since which all added ids are known. */
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
    else this.#earlier = undefined
  }

  /** All known ids, as signed numbers of 32 bits; `add` takes them, too. */
  ids(): readonly number[] {
    const ids = new Set<number>()
    for (const notes of [this.#older, this.#newer]) notes.replay(ids)
    return [...ids]
  }

  #turn(): void {
    if (this.#isHeld) return
    // The clock has whole milliseconds, and the current one may be in the older notes, too.
    const now = this.#now() + 1
    // New notes begin, too, if the clock was set back.
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

/** Notes hold an id as a positive number, and the end of its connection as a negative one. */
const endOf = (id: number) => -1 - id

/** Begins and ends of connections in their order, in memory that is used again. */
class Notes {
  /** The time at which these notes begin. */
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
