import { Epoll, interest } from '../../lib/kernel/sockets/epoll.js'
import {
  loadLibc,
  allocateNative,
  type Libc,
  type NativeMemory,
} from '../../lib/kernel/sockets/libc.js'
import { Sockets } from '../../lib/kernel/sockets/sockets.js'

export const edgeTriggered =
  (interest.readable | interest.writable | interest.peerFinished | interest.edgeTriggered) >>> 0

const truncate = 0x20

/**
 * A cheap event loop for both ends of a load. On a machine of two cores a costly one would itself
 * be measured. It blocks the thread, which does nothing else.
 */
export class RawLoop {
  readonly sockets: Sockets
  readonly buffer: NativeMemory
  readonly #epoll: Epoll
  readonly #handlers: ((events: number) => void)[] = []
  readonly #libc: Libc

  static async load(bufferBytes = 1 << 18): Promise<RawLoop> {
    return new RawLoop(await loadLibc(), bufferBytes)
  }

  constructor(libc: Libc, bufferBytes: number) {
    this.#libc = libc
    this.sockets = new Sockets(libc)
    this.buffer = allocateNative(libc, bufferBytes)
    this.#epoll = new Epoll(libc, 512)
  }

  get libc(): Libc {
    return this.#libc
  }

  add(fd: number, events: number, handler: (events: number) => void): void {
    this.#handlers[fd] = handler
    this.#epoll.add(fd, events)
  }

  /** Takes bytes without copying them out of the kernel, for callers that only count them. */
  discard(fd: number): number {
    return this.#libc.recv(fd, this.buffer.address, this.buffer.bytes.length, truncate)
  }

  close(fd: number): void {
    this.#libc.close(fd)
  }

  /** Serves events. Without any it returns after `timeoutMs`. */
  turn(timeoutMs: number): void {
    const count = this.#epoll.wait(timeoutMs)
    for (let index = 0; index < count; index++) {
      this.#handlers[this.#epoll.fdAt(index)]?.(this.#epoll.eventsAt(index))
    }
  }
}
