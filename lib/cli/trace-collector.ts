import type { TraceEvent } from '../inspect/trace/events.js'
import type { TraceStory } from '../inspect/trace/story.js'

/** A packet without an event for this time has no more events. */
export const settleMs = 300

/**
 * Collects events by packet. `signal` is aborted a moment after the last event of the last packet.
 */
export class TraceCollector {
  readonly #count: number
  readonly #done = new AbortController()
  readonly signal: AbortSignal = this.#done.signal
  readonly #events = new Map<string, TraceEvent[]>()
  readonly #whole: TraceStory[] = []
  #timer: NodeJS.Timeout | undefined

  constructor(count: number) {
    this.#count = count
  }

  get size(): number {
    return this.#events.size + this.#whole.length
  }

  add(event: TraceEvent): void {
    const known = this.#events.get(event.id)
    if (known) known.push(event)
    else if (this.size < this.#count) this.#events.set(event.id, [event])
    else return
    this.#endSoonIfFull()
  }

  /** A connection that has no packet to trace. */
  addWhole(story: TraceStory): void {
    if (this.size >= this.#count) return
    this.#whole.push(story)
    this.#endSoonIfFull()
  }

  end(): void {
    clearTimeout(this.#timer)
    this.#done.abort()
  }

  finished(): readonly (readonly TraceEvent[])[] {
    return [...this.#events.values()]
  }

  whole(): readonly TraceStory[] {
    return this.#whole
  }

  #endSoonIfFull(): void {
    if (this.size < this.#count) return
    clearTimeout(this.#timer)
    this.#timer = setTimeout(() => this.end(), settleMs)
  }
}
