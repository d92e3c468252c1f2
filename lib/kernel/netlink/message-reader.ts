import { aligned, headerBytes, isLittleEndian } from './protocol.js'

/** Bits 14 and 15 of an attribute's type say how it is coded, not what it is. */
const attributeTypeMask = 0x3fff

export interface Message {
  readonly type: number
  readonly flags: number
  readonly sequence: number
  /** The socket that the message answers, or that asked for the change it tells of. */
  readonly port: number
  /** The bytes after the netlink header: a view into a buffer that the next receive overwrites. */
  readonly payload: Buffer
}

export function readU16(buffer: Buffer, at: number): number {
  return isLittleEndian ? buffer.readUInt16LE(at) : buffer.readUInt16BE(at)
}

export function readU32(buffer: Buffer, at: number): number {
  return isLittleEndian ? buffer.readUInt32LE(at) : buffer.readUInt32BE(at)
}

export function readI32(buffer: Buffer, at: number): number {
  return isLittleEndian ? buffer.readInt32LE(at) : buffer.readInt32BE(at)
}

export function readU64(buffer: Buffer, at: number): bigint {
  return isLittleEndian ? buffer.readBigUInt64LE(at) : buffer.readBigUInt64BE(at)
}

/** The text of a string attribute, with or without its closing zero. */
export function readString(value: Buffer): string {
  const end = value.indexOf(0)
  return value.toString('utf8', 0, end < 0 ? value.length : end)
}

/** Calls `visit` for each message of one datagram, and stops at one that is cut off. */
export function forEachMessage(datagram: Buffer, visit: (message: Message) => void): void {
  for (let at = 0; at + headerBytes <= datagram.length;) {
    const length = readU32(datagram, at)
    if (length < headerBytes || at + length > datagram.length) return
    visit({
      type: readU16(datagram, at + 4),
      flags: readU16(datagram, at + 6),
      sequence: readU32(datagram, at + 8),
      port: readU32(datagram, at + 12),
      payload: datagram.subarray(at + headerBytes, at + length),
    })
    at += aligned(length)
  }
}

/** Calls `visit` with type, start and end of each attribute from `from` on. It allocates nothing. */
export function forEachAttribute(
  buffer: Buffer,
  from: number,
  visit: (type: number, start: number, end: number) => void,
): void {
  for (let at = from; at + 4 <= buffer.length;) {
    const length = readU16(buffer, at)
    if (length < 4 || at + length > buffer.length) return
    visit(readU16(buffer, at + 2) & attributeTypeMask, at + 4, at + length)
    at += aligned(length)
  }
}

/**
 * The attributes by type; of a repeated type the last one. It allocates: use it for few messages.
 */
export function attributesOf(buffer: Buffer, from = 0): ReadonlyMap<number, Buffer> {
  const attributes = new Map<number, Buffer>()
  forEachAttribute(buffer, from, (type, start, end) => {
    attributes.set(type, buffer.subarray(start, end))
  })
  return attributes
}
