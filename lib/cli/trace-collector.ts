import type { TracedPacket, TraceEvent } from '../inspect/trace/events.js'
import type { TraceTarget } from '../inspect/trace/trace-rule.js'

/** A packet without an event for this time has no more events. */
export const settleMs = 300

interface Packet {
  readonly events: TraceEvent[]
  timer?: NodeJS.Timeout
}

/**
 * Collects events by packet, and tells of each packet once it has no more. `signal` is aborted when
 * all were told.
 */
export class TraceCollector {
  readonly #count: number
  readonly #target: Pick<TraceTarget, 'ip' | 'port'>
  readonly #found: (events: readonly TraceEvent[]) => void
  readonly #done = new AbortController()
  readonly signal: AbortSignal = this.#done.signal
  /** By the ids that the kernel gives them. */
  readonly #packets = new Map<string, Packet>()
  readonly #open = new Set<Packet>()
  #size = 0

  constructor(
    count: number,
    target: Pick<TraceTarget, 'ip' | 'port'>,
    found: (events: readonly TraceEvent[]) => void,
  ) {
    this.#count = count
    this.#target = target
    this.#found = found
  }

  /** The connections so far. */
  get size(): number {
    return this.#size
  }

  add(event: TraceEvent): void {
    const packet = this.#packets.get(event.id) ?? this.#goesOn(event) ?? this.#begin(event)
    if (!packet) return
    packet.events.push(event)
    clearTimeout(packet.timer)
    packet.timer = setTimeout(() => this.#settle(packet), settleMs)
  }

  #begin(event: TraceEvent): Packet | undefined {
    if (this.#size >= this.#count || !this.#isAsked(event)) return undefined
    this.#size++
    const packet: Packet = { events: [] }
    this.#packets.set(event.id, packet)
    this.#open.add(packet)
    return packet
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
  #goesOn(event: TraceEvent): Packet | undefined {
    if (event.kind !== 'packet') return undefined
    const of = ({ source, sourcePort }: TracedPacket) => `${source} ${sourcePort}`
    const to = ({ destination, destinationPort }: TracedPacket) =>
      `${destination} ${destinationPort}`
    const before = [...this.#packets.values()].findLast(({ events: [first] }) => {
      if (first?.kind !== 'packet' || of(first.packet) !== of(event.packet)) return false
      const isForwarded = first.packet.outInterface === '' && event.packet.outInterface !== ''
      return isForwarded || to(first.packet) !== to(event.packet)
    })
    if (before) this.#packets.set(event.id, before)
    return before
  }

  /** A connection that has no packet to trace. Returns whether it still counts. */
  addWhole(): boolean {
    if (this.#size >= this.#count) return false
    this.#size++
    this.#endIfFull()
    return true
  }

  end(): void {
    for (const packet of this.#open) this.#settle(packet)
    this.#done.abort()
  }

  #settle(packet: Packet): void {
    clearTimeout(packet.timer)
    if (!this.#open.delete(packet)) return
    this.#found(packet.events)
    this.#endIfFull()
  }

  #endIfFull(): void {
    if (this.#size >= this.#count && this.#open.size === 0) this.#done.abort()
  }
}
