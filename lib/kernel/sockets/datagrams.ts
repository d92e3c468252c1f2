import type { Libc } from './libc.js'
import { allocateNative, type NativeMemory } from './native-memory.js'
import { maxAddressLength } from './socket-address.js'

/** The largest datagram is 65,507 bytes over IPv4; nothing is ever cut off. */
export const maxDatagram = 65_536

const headerSize = 64
const vectorSize = 16
const vectorLength = 8
const header = { name: 0, nameLength: 8, vector: 16, vectorCount: 24, length: 56 }
const nameStride = 32

/**
 * Datagrams that are received or sent by one call: `struct mmsghdr`, each with one buffer and
 * one address.
 */
export class DatagramBatch {
  readonly capacity: number
  readonly #libc: Libc
  readonly #headers: NativeMemory
  readonly #vectors: NativeMemory
  readonly #names: NativeMemory
  readonly #data: NativeMemory

  constructor(libc: Libc, capacity: number) {
    this.capacity = capacity
    this.#libc = libc
    this.#headers = allocateNative(libc, capacity * headerSize)
    this.#vectors = allocateNative(libc, capacity * vectorSize)
    this.#names = allocateNative(libc, capacity * nameStride)
    // Pages are only taken by the kernel once they are used.
    this.#data = allocateNative(libc, capacity * maxDatagram)
    for (let index = 0; index < capacity; index++) this.#layOut(index)
  }

  /** All address bytes; see {@link DatagramBatch.nameOffset}. */
  get names(): NativeMemory {
    return this.#names
  }

  nameOffset(index: number): number {
    return index * nameStride
  }

  /** Address of the bytes of one datagram. */
  dataAddress(index: number): number {
    return this.#data.address + index * maxDatagram
  }

  /** After {@link DatagramBatch.receive}. */
  length(index: number): number {
    return this.#headers.view.getUint32(index * headerSize + header.length, true)
  }

  /** Receives up to `count` at `first` and behind: how many came, or the negative error. */
  receive(fd: number, first: number, count: number): number {
    for (let index = first; index < first + count; index++) {
      this.#headers.view.setUint32(index * headerSize + header.nameLength, maxAddressLength, true)
      this.#vectors.view.setUint32(index * vectorSize + vectorLength, maxDatagram, true)
    }
    return this.#libc.recvmmsg(fd, this.#headers.address + first * headerSize, count, 0, 0)
  }

  /** Makes one datagram ready to send: its bytes are in place already. */
  prepare(index: number, length: number, to: Uint8Array): void {
    this.#vectors.view.setUint32(index * vectorSize + vectorLength, length, true)
    this.#headers.view.setUint32(index * headerSize + header.nameLength, to.length, true)
    this.#names.bytes.set(to, index * nameStride)
  }

  /** Sends those from `first` up to, not including, `end`; how many went, or the negative error. */
  send(fd: number, first: number, end: number): number {
    return this.#libc.sendmmsg(fd, this.#headers.address + first * headerSize, end - first, 0)
  }

  #layOut(index: number): void {
    const at = index * headerSize
    const { view } = this.#headers
    const vector = this.#vectors.address + index * vectorSize
    view.setBigUint64(at + header.name, BigInt(this.#names.address + index * nameStride), true)
    view.setBigUint64(at + header.vector, BigInt(vector), true)
    view.setBigUint64(at + header.vectorCount, 1n, true)
    const vectors = this.#vectors.view
    vectors.setBigUint64(index * vectorSize, BigInt(this.dataAddress(index)), true)
  }
}
