import { Attributes, nativeCopy } from './attributes.js'
import { run } from './commands.js'
import type { SystemCalls } from './system-calls.js'

/** Kinds of BTF types, as far as they are needed here. */
const kinds = { int: 1, array: 3 } as const
const signed = 1 << 24
const magic = 0xeb9f
const headerBytes = 24

/** Numbers of the types below, in their order; 0 is `void`. */
export const keyType = 1
export const valueType = 3

/**
 * Describes the types of a `per-socket` map, which the kernel asks for: the key is an `int`, the
 * value an array of bytes. Compilers write this format (BTF) next to a program; the few bytes that
 * matter are made by hand here.
 */
export function typesOfSocketMap(valueBytes: number): Buffer {
  const names = Buffer.from('\0int\0char\0', 'latin1')
  const types = words([
    // int
    [1, kinds.int << 24, 4, signed | 32],
    // char
    [5, kinds.int << 24, 1, signed | 8],
    // char[valueBytes]; the index is an int.
    [0, kinds.array << 24, 0, 2, 1, valueBytes],
  ])
  const header = Buffer.alloc(headerBytes)
  header.writeUInt16LE(magic, 0)
  header.writeUInt8(1, 2)
  header.writeUInt32LE(headerBytes, 4)
  header.writeUInt32LE(types.length, 12)
  header.writeUInt32LE(types.length, 16)
  header.writeUInt32LE(names.length, 20)
  return Buffer.concat([header, types, names])
}

/** Returns a descriptor; the map that names it keeps the types alive. */
export function loadTypes(calls: SystemCalls, types: Buffer): number {
  const attributes = new Attributes(calls, 28).pointer(0, nativeCopy(types)).u32(16, types.length)
  return run(calls, 'loadBtf', attributes, 'load the types of an eBPF map')
}

function words(types: readonly (readonly number[])[]): Buffer {
  return Buffer.from(Uint32Array.from(types.flat()).buffer)
}
