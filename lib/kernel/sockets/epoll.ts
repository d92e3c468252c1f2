import { allocateNative, type NativeMemory, type Libc } from './libc.js'
import { SystemCallError } from './errno.js'

export const interest = {
  readable: 0x1,
  urgent: 0x2,
  writable: 0x4,
  error: 0x8,
  hangup: 0x10,
  /** The peer has finished sending. */
  peerFinished: 0x2000,
  /** Reports each change once, instead of the same state again and again. */
  edgeTriggered: 0x80000000,
} as const

const cloexec = 0o2000000
const add = 1
const remove = 2
const modify = 3

/** One epoll instance, and the buffer its events arrive in. */
export class Epoll {
  readonly fd: number
  readonly #libc: Libc
  readonly #eventSize = process.arch === 'x64' ? 12 : 16
  readonly #dataOffset = process.arch === 'x64' ? 4 : 8
  readonly #request: NativeMemory
  readonly #events: NativeMemory
  readonly #capacity: number

  constructor(libc: Libc, capacity: number) {
    this.#libc = libc
    this.#capacity = capacity
    this.#request = allocateNative(libc, this.#eventSize)
    this.#events = allocateNative(libc, this.#eventSize * capacity)
    this.fd = libc.epoll_create1(cloexec)
    if (this.fd < 0) throw new SystemCallError('create an epoll instance', this.fd)
  }

  /**
   * Returns 0 or the negative error. Events carry the tag, so that a caller can recognize events of
   * an earlier descriptor with the same number. A closed descriptor is removed, unless a copy of it
   * is open somewhere.
   */
  add(fd: number, events: number, tag = 0): number {
    return this.#control(add, fd, events, tag)
  }

  modify(fd: number, events: number, tag = 0): number {
    return this.#control(modify, fd, events, tag)
  }

  remove(fd: number): number {
    return this.#control(remove, fd, 0, 0)
  }

  /** How many descriptors have events. The methods below return them by index. */
  wait(timeoutMs: number): number {
    return this.#libc.epoll_wait(this.fd, this.#events.address, this.#capacity, timeoutMs)
  }

  fdAt(index: number): number {
    return this.#events.view.getInt32(index * this.#eventSize + this.#dataOffset, true)
  }

  tagAt(index: number): number {
    return this.#events.view.getInt32(index * this.#eventSize + this.#dataOffset + 4, true)
  }

  eventsAt(index: number): number {
    return this.#events.view.getUint32(index * this.#eventSize, true)
  }

  close(): void {
    this.#libc.close(this.fd)
  }

  #control(operation: number, fd: number, events: number, tag: number): number {
    this.#request.view.setUint32(0, events, true)
    this.#request.view.setInt32(this.#dataOffset, fd, true)
    this.#request.view.setInt32(this.#dataOffset + 4, tag, true)
    return this.#libc.epoll_ctl(this.fd, operation, fd, this.#request.address)
  }
}
