import { allocateNative, type Libc, type NativeMemory } from './libc.js'
import { maxAddressLength } from './socket-address.js'

/** Larger than every datagram (65,507 bytes over IPv4), so none is cut off. */
export const maxDatagram = 65_536
/** Room for the bytes that `prefix` puts in front of a datagram. */
const headroom = 128
const dataStride = headroom + maxDatagram

const headerSize = 64
const vectorSize = 16
const vectorLength = 8
const header = {
  name: 0,
  nameLength: 8,
  vector: 16,
  vectorCount: 24,
  control: 32,
  controlLength: 40,
  length: 56,
} as const
const nameStride = 32
/** Room for `cmsghdr` and `in6_pktinfo`, which is longer than `in_pktinfo`. */
const controlStride = 40
const ipv4Control = 32
/** Offsets in a `cmsghdr` with `in_pktinfo` or `in6_pktinfo`. */
const packetInfo = {
  IPv4: { device: 16, addresses: 20, end: 28 },
  IPv6: { addresses: 16, end: 32, device: 32 },
} as const

/**
 * Datagrams that one call receives or sends. Each is a `struct mmsghdr` with one buffer and one
 * address.
 */
export class DatagramBatch {
  readonly capacity: number
  readonly #libc: Libc
  readonly #headers: NativeMemory
  readonly #vectors: NativeMemory
  readonly #names: NativeMemory
  readonly #controls: NativeMemory
  readonly #data: NativeMemory

  constructor(libc: Libc, capacity: number) {
    this.capacity = capacity
    this.#libc = libc
    this.#headers = allocateNative(libc, capacity * headerSize)
    this.#vectors = allocateNative(libc, capacity * vectorSize)
    this.#names = allocateNative(libc, capacity * nameStride)
    this.#controls = allocateNative(libc, capacity * controlStride)
    // The kernel gives out pages only when they are used.
    this.#data = allocateNative(libc, capacity * dataStride)
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
    return this.#data.address + index * dataStride + headroom
  }

  /** The length of a received datagram. */
  length(index: number): number {
    return this.#headers.view.getUint32(index * headerSize + header.length, true)
  }

  /** Puts bytes in front of a received datagram, and returns the address of the first. */
  prefix(index: number, bytes: Uint8Array): number {
    const start = index * dataStride + headroom - bytes.length
    this.#data.bytes.set(bytes, start)
    return this.#data.address + start
  }

  /** Receives up to `count` from index `first` on. Returns how many came, or the negative error. */
  receive(fd: number, first: number, count: number): number {
    for (let index = first; index < first + count; index++) {
      const at = index * headerSize
      this.#headers.view.setUint32(at + header.nameLength, maxAddressLength, true)
      this.#headers.view.setUint32(at + header.controlLength, controlStride, true)
      this.#vectors.view.setUint32(index * vectorSize + vectorLength, maxDatagram, true)
    }
    return this.#libc.recvmmsg(fd, this.#headers.address + first * headerSize, count, 0, 0)
  }

  /**
   * The local address that a received datagram was sent to, in the form that `prepare` takes. Empty
   * for a datagram that came before the socket told destinations.
   */
  destination(index: number): Uint8Array {
    const start = index * controlStride
    const length = this.#headers.view.getUint32(index * headerSize + header.controlLength, true)
    const control = Uint8Array.from(this.#controls.bytes.subarray(start, start + length))
    // Replies may leave through another device, except those of a link-local address.
    const { addresses, device } = length > ipv4Control ? packetInfo.IPv6 : packetInfo.IPv4
    const isUnknown = control.subarray(addresses, addresses + 4).every((byte) => byte === 0)
    if (length === ipv4Control && isUnknown) return nowhere
    const isLinkLocal = length > ipv4Control && control[addresses] === 0xfe
    if (!isLinkLocal) control.fill(0, device, device + 4)
    return control
  }

  /** Whether a datagram was sent to the address that `destination` returned for another one. */
  hasDestination(index: number, known: Uint8Array): boolean {
    if (known.length === 0) return true
    const { addresses, end } = known.length > ipv4Control ? packetInfo.IPv6 : packetInfo.IPv4
    const start = index * controlStride
    const { bytes } = this.#controls
    for (let at = addresses; at < end; at++) if (bytes[start + at] !== known[at]) return false
    return true
  }

  /**
   * Prepares a datagram whose bytes are in place. The kernel chooses the source if `from` is empty.
   */
  prepare(index: number, length: number, to: Uint8Array, from: Uint8Array = nowhere): void {
    this.#vectors.view.setUint32(index * vectorSize + vectorLength, length, true)
    this.#headers.view.setUint32(index * headerSize + header.nameLength, to.length, true)
    this.#headers.view.setUint32(index * headerSize + header.controlLength, from.length, true)
    this.#names.bytes.set(to, index * nameStride)
    if (from.length > 0) this.#controls.bytes.set(from, index * controlStride)
  }

  /** Sends from `first` up to, not including, `end`. Returns how many were sent, or the negative error. */
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
    const control = this.#controls.address + index * controlStride
    view.setBigUint64(at + header.control, BigInt(control), true)
    const vectors = this.#vectors.view
    vectors.setBigUint64(index * vectorSize, BigInt(this.dataAddress(index)), true)
  }
}

const nowhere = new Uint8Array(0)
