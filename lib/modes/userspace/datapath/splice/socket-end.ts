import { interest } from '../../../../kernel/sockets/epoll.js'
import type { EventLoop, Watcher } from './event-loop.js'

/** Gets the events of an end. */
export interface EndOwner {
  endReady(end: SocketEnd, events: number): void
}

const reading = interest.readable | interest.peerFinished | interest.urgent | interest.edgeTriggered
const both = reading | interest.writable

/**
 * One of the two sockets of a connection, and its state by the last events. Events are
 * edge-triggered: the state stays true until a call returns EAGAIN, or reads less than there was
 * room for.
 */
export class SocketEnd implements Watcher {
  readonly fd: number
  readonly #loop: EventLoop
  readonly #owner: EndOwner
  mayRead = false
  mayWrite = false
  /** The peer's FIN has arrived, perhaps behind bytes that are not yet read. */
  hasFinished = false
  /** All bytes before the FIN are read. */
  isDrained = false
  /** A reset looks like a FIN in events. Only a read behind the last byte tells them apart. */
  isOver = false
  /** There was urgent data: a short read no longer means that everything is read. */
  hasUrgent = false
  /** Nagle's algorithm is off, or does not matter yet. */
  isWithoutDelay = false
  #isWatched = false
  #awaitsWritable = false

  constructor(fd: number, loop: EventLoop, owner: EndOwner) {
    this.fd = fd
    this.#loop = loop
    this.#owner = owner
  }

  ready(events: number): void {
    this.#owner.endReady(this, events)
  }

  note(events: number): void {
    const isOver = (events & (interest.hangup | interest.error)) !== 0
    if (isOver || (events & (interest.readable | interest.peerFinished)) !== 0) this.mayRead = true
    if (isOver || (events & interest.writable) !== 0) this.mayWrite = true
    if ((events & interest.peerFinished) !== 0) this.hasFinished = true
    if (isOver) this.isOver = true
    if ((events & interest.urgent) !== 0) this.hasUrgent = true
  }

  /** 0, or the negative error. Events from before the call are reported too. */
  watch(): number {
    this.#isWatched = true
    return this.#loop.add(this.fd, (this.#awaitsWritable ? both : reading) >>> 0, this)
  }

  /** Asks for an event when there is room again. Not asked earlier: most peers are never slow. */
  awaitWritable(): void {
    this.mayWrite = false
    if (this.#awaitsWritable) return
    this.#awaitsWritable = true
    if (this.#isWatched) this.#loop.modify(this.fd, both >>> 0)
  }

  close(): void {
    this.#loop.close(this.fd)
  }
}
