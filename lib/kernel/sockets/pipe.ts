import { allocateNative, nonBlockingCloexec, type Libc, type NativeMemory } from './libc.js'

const setPipeSize = 1031
const spliceMove = 1
const spliceNonBlocking = 2

/** A pipe for bytes that go from one socket to another without being copied. */
export interface Pipe {
  readonly readEnd: number
  readonly writeEnd: number
}

/** The system calls pipe2 and splice. */
export class Pipes {
  readonly #libc: Libc
  readonly #fds: NativeMemory

  constructor(libc: Libc) {
    this.#libc = libc
    this.#fds = allocateNative(libc, 8)
  }

  /** Undefined when the system refuses; data then has to be copied. */
  open(bytes: number): Pipe | undefined {
    if (this.#libc.pipe2(this.#fds.address, nonBlockingCloexec) < 0) return undefined
    const readEnd = this.#fds.view.getInt32(0, true)
    const writeEnd = this.#fds.view.getInt32(4, true)
    // The system refuses when the user has too many pages in pipes; the default size remains.
    this.#libc.fcntl(writeEnd, setPipeSize, bytes)
    return { readEnd, writeEnd }
  }

  close(pipe: Pipe): void {
    this.#libc.close(pipe.readEnd)
    this.#libc.close(pipe.writeEnd)
  }

  /** Bytes moved, 0 at the end of the stream, or the negative error. */
  fill(pipe: Pipe, from: number, bytes: number): number {
    return this.#libc.splice(from, 0, pipe.writeEnd, 0, bytes, spliceMove | spliceNonBlocking)
  }

  empty(pipe: Pipe, to: number, bytes: number): number {
    return this.#libc.splice(pipe.readEnd, 0, to, 0, bytes, spliceMove | spliceNonBlocking)
  }
}
