import type { TracedPacket, TraceEvent } from '../inspect/trace/events.js'
import type { TraceStory } from '../inspect/trace/story.js'
import type { TraceTarget } from '../inspect/trace/trace-rule.js'

/** A packet without an event for this time has no more events. */
export const settleMs = 300

/**
 * Collects events by packet. `signal` is aborted a moment after the last event of the last packet.
 */
export class TraceCollector {
  readonly #count: number
  readonly #target: Pick<TraceTarget, 'ip' | 'port'>
  readonly #done = new AbortController()
  readonly signal: AbortSignal = this.#done.signal
  readonly #events = new Map<string, TraceEvent[]>()
  readonly #whole: TraceStory[] = []
  #timer: NodeJS.Timeout | undefined

  constructor(count: number, target: Pick<TraceTarget, 'ip' | 'port'>) {
    this.#count = count
    this.#target = target
  }

  get size(): number {
    return this.finished().length + this.#whole.length
  }

  add(event: TraceEvent): void {
    const known = this.#events.get(event.id) ?? this.#goesOn(event)
    if (known) known.push(event)
    else if (this.size < this.#count && this.#isAsked(event)) this.#events.set(event.id, [event])
    else return
    this.#endSoonIfFull()
  }

  /** The kernel tells every listener about the packets of all traces. */
  #isAsked(event: TraceEvent): boolean {
    if (event.kind !== 'packet') return false
    const { destination, destinationPort } = event.packet
    return destination === this.#target.ip && destinationPort === this.#target.port
  }

  /**
   * The events of a packet that has a new id: the kernel may give it one after the destination
   * became an address of this node, or on the way to another interface. A packet that is sent again
   * has the old destination, and comes in.
   */
  #goesOn(event: TraceEvent): TraceEvent[] | undefined {
    if (event.kind !== 'packet') return undefined
    const of = ({ source, sourcePort }: TracedPacket) => `${source} ${sourcePort}`
    const to = ({ destination, destinationPort }: TracedPacket) =>
      `${destination} ${destinationPort}`
    const before = [...this.#events.values()].findLast(([first]) => {
      if (first?.kind !== 'packet' || of(first.packet) !== of(event.packet)) return false
      const isForwarded = first.packet.outInterface === '' && event.packet.outInterface !== ''
      return isForwarded || to(first.packet) !== to(event.packet)
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
