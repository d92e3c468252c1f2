/** Enough for the bad objects of a large cluster; a bound, because anybody can make more. */
const mostInLane = 1000

const lanes = ['news', 'complaints'] as const
/**
 * `news` is what somebody may have to act on now, such as an endpoint that fails. `complaints` are
 * about what objects ask for.
 */
export type Lane = (typeof lanes)[number]

/** What waits until it may be sent. The lanes take turns, so neither keeps the other waiting. */
export class EventLanes<T> {
  /** By key, in the order of their arrival. */
  readonly #waiting: Readonly<Record<Lane, Map<string, T>>> = {
    news: new Map(),
    complaints: new Map(),
  }
  #turn: Lane = 'news'

  get isEmpty(): boolean {
    return lanes.every((lane) => this.#waiting[lane].size === 0)
  }

  /** Takes the place of what waits with the same key. Returns false when the lane is full. */
  put(lane: Lane, key: string, item: T): boolean {
    const waiting = this.#waiting[lane]
    if (waiting.size >= mostInLane && !waiting.has(key)) return false
    waiting.set(key, item)
    return true
  }

  take(): T | undefined {
    const other = this.#turn === 'news' ? 'complaints' : 'news'
    const lane = this.#waiting[this.#turn].size > 0 ? this.#turn : other
    const [first] = this.#waiting[lane]
    if (!first) return undefined
    const [key, item] = first
    this.#waiting[lane].delete(key)
    this.#turn = lane === 'news' ? 'complaints' : 'news'
    return item
  }
}
