import type { TracedPacket, TraceEvent } from '../inspect/trace/events.js'
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
    return this.finished().length + this.#whole.length
  }

  add(event: TraceEvent): void {
    const known = this.#events.get(event.id) ?? this.#goesOn(event)
    if (known) known.push(event)
    else if (this.size < this.#count) this.#events.set(event.id, [event])
    else return
    this.#endSoonIfFull()
  }

  /**
   * The events of a packet that has a new id: the kernel may give it one after the destination
   * became an address of this node. A packet that is sent again has the old destination.
   */
  #goesOn(event: TraceEvent): TraceEvent[] | undefined {
    if (event.kind !== 'packet') return undefined
    const of = ({ source, sourcePort }: TracedPacket) => `${source} ${sourcePort}`
    const to = ({ destination, destinationPort }: TracedPacket) =>
      `${destination} ${destinationPort}`
    const before = [...this.#events.values()].find(([first]) => {
      if (first?.kind !== 'packet') return false
      return of(first.packet) === of(event.packet) && to(first.packet) !== to(event.packet)
    })
    if (before) this.#events.set(event.id, before)
    return before
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
    return [...new Set(this.#events.values())]
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
