import { endianness } from 'node:os'

/**
 * The numbers of netlink itself, from linux/netlink.h. Numbers of its families are beside the code
 * that uses them.
 */

export const protocols = { route: 0, netfilter: 12, generic: 16 } as const

/** Flags of a request. Several share a bit: their meaning depends on the verb. */
export const flags = {
  request: 0x1,
  multi: 0x2,
  ack: 0x4,
  dumpInterrupted: 0x10,
  dump: 0x300,
  excl: 0x200,
  create: 0x400,
  append: 0x800,
} as const

/** Flags of an acknowledgement. */
export const ackFlags = { capped: 0x100, hasTexts: 0x200 } as const

/** Message types below 16 belong to netlink itself. */
export const controlTypes = { error: 2, done: 3 } as const

export const headerBytes = 16

/** The header of generic netlink, between the header of netlink and the attributes. */
export function genericHeader(command: number, version: number): Uint8Array {
  return Uint8Array.of(command, version, 0, 0)
}

export const genericHeaderBytes = 4

/** Every message and every attribute starts at a multiple of four bytes. */
export function aligned(length: number): number {
  return (length + 3) & ~3
}

/** The bit in the type of an attribute that holds other attributes. */
export const nestedBit = 0x8000

/** Numbers in netlink messages have the byte order of the machine. */
export const isLittleEndian = endianness() === 'LE'

/** The four bytes of a number, in this order. */
export function hostBytes(value: number): Buffer {
  const bytes = zeros(4)
  if (isLittleEndian) bytes.writeUInt32LE(value >>> 0)
  else bytes.writeUInt32BE(value >>> 0)
  return bytes
}

/** Takes memory of Node's pool. A separate allocation for a few bytes makes ten times the garbage. */
export function zeros(length: number): Buffer {
  return Buffer.allocUnsafe(length).fill(0)
}
