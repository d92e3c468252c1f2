import { aligned, flags, headerBytes, isLittleEndian, nestedBit } from './protocol.js'

/**
 * Writes netlink messages one after another into one growing buffer, which goes to the kernel in
 * one system call. Numbers are in the host's order unless the name says `be`.
 */
export class MessageWriter {
  #buffer: Buffer
  #length = 0
  #messages = 0

  constructor(initialBytes = 4096) {
    this.#buffer = Buffer.allocUnsafe(initialBytes)
  }

  /** How many messages were written. */
  get messages(): number {
    return this.#messages
  }

  get byteLength(): number {
    return this.#length
  }

  /** One message; `body` writes its fixed header and its attributes. NLM_F_REQUEST is implied. */
  message(type: number, messageFlags: number, body?: (writer: this) => void): this {
    const start = this.#grow(headerBytes)
    this.#buffer.fill(0, start, start + headerBytes)
    this.#put16(start + 4, type)
    this.#put16(start + 6, messageFlags | flags.request)
    body?.(this)
    this.#put32(start, this.#length - start)
    this.#messages++
    return this
  }

  /** Fixed bytes that follow the message's header, such as a genlmsghdr or an nfgenmsg. */
  fixed(bytes: Uint8Array): this {
    const start = this.#grow(aligned(bytes.length))
    this.#buffer.set(bytes, start)
    this.#buffer.fill(0, start + bytes.length, start + aligned(bytes.length))
    return this
  }

  bytes(type: number, value: Uint8Array): this {
    const start = this.#attribute(type, value.length)
    this.#buffer.set(value, start)
    return this
  }

  u8(type: number, value: number): this {
    // First the place: the buffer may be another one afterwards.
    const start = this.#attribute(type, 1)
    this.#buffer[start] = value
    return this
  }

  u16(type: number, value: number): this {
    this.#put16(this.#attribute(type, 2), value)
    return this
  }

  u32(type: number, value: number): this {
    this.#put32(this.#attribute(type, 4), value)
    return this
  }

  be16(type: number, value: number): this {
    const start = this.#attribute(type, 2)
    this.#buffer.writeUInt16BE(value & 0xffff, start)
    return this
  }

  be32(type: number, value: number): this {
    const start = this.#attribute(type, 4)
    this.#buffer.writeUInt32BE(value >>> 0, start)
    return this
  }

  be64(type: number, value: bigint): this {
    const start = this.#attribute(type, 8)
    this.#buffer.writeBigUInt64BE(value, start)
    return this
  }

  /** Text with its closing zero byte, as the kernel wants names. */
  string(type: number, value: string): this {
    const length = Buffer.byteLength(value)
    const start = this.#attribute(type, length + 1)
    this.#buffer.write(value, start)
    this.#buffer[start + length] = 0
    return this
  }

  /** An attribute that holds other attributes. */
  nest(type: number, body: (writer: this) => void): this {
    const start = this.#attribute(type | nestedBit, 0) - 4
    body(this)
    const length = this.#length - start
    // An attribute's length has 16 bits; a longer one would silently be read as a short one.
    if (length > 0xffff) {
      throw new RangeError(`write netlink attribute ${type}: ${length} bytes do not fit, split it`)
    }
    this.#put16(start, length)
    return this
  }

  /**
   * Returns the written bytes, valid until the next write. Sequence numbers start at
   * `firstSequence`.
   */
  finish(firstSequence: number): Buffer {
    let sequence = firstSequence
    for (let at = 0; at < this.#length;) {
      this.#put32(at + 8, sequence++)
      at += this.#get32(at)
    }
    return this.#buffer.subarray(0, this.#length)
  }

  /** Forgets the written messages and keeps the memory. */
  reset(): this {
    this.#length = 0
    this.#messages = 0
    return this
  }

  /** Reserves an attribute with room for `length` bytes and returns where they start. */
  #attribute(type: number, length: number): number {
    if (length + 4 > 0xffff) {
      throw new RangeError(`write netlink attribute ${type}: ${length} bytes do not fit, split it`)
    }
    const start = this.#grow(aligned(length + 4))
    this.#put16(start, length + 4)
    this.#put16(start + 2, type)
    this.#buffer.fill(0, start + 4 + length, this.#length)
    return start + 4
  }

  #grow(bytes: number): number {
    const start = this.#length
    const needed = start + bytes
    if (needed > this.#buffer.length) {
      const larger = Buffer.allocUnsafe(Math.max(needed, this.#buffer.length * 2))
      larger.set(this.#buffer.subarray(0, start))
      this.#buffer = larger
    }
    this.#length = needed
    return start
  }

  #put16(at: number, value: number): void {
    if (isLittleEndian) this.#buffer.writeUInt16LE(value & 0xffff, at)
    else this.#buffer.writeUInt16BE(value & 0xffff, at)
  }

  #put32(at: number, value: number): void {
    if (isLittleEndian) this.#buffer.writeUInt32LE(value >>> 0, at)
    else this.#buffer.writeUInt32BE(value >>> 0, at)
  }

  #get32(at: number): number {
    return isLittleEndian ? this.#buffer.readUInt32LE(at) : this.#buffer.readUInt32BE(at)
  }
}
