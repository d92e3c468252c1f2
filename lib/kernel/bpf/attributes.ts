import type { SystemCalls } from './system-calls.js'

/** The argument of a bpf command, and the memory that it points to. */
export class Attributes {
  readonly bytes: Buffer
  readonly #calls: Pick<SystemCalls, 'addressOf'>
  /** References to memory that the kernel reads or writes, so that it is not garbage-collected. */
  readonly #kept: Buffer[] = []

  constructor(calls: Pick<SystemCalls, 'addressOf'>, size: number) {
    this.#calls = calls
    this.bytes = nativeBytes(size)
  }

  u32(at: number, value: number): this {
    this.bytes.writeUInt32LE(value >>> 0, at)
    return this
  }

  /** The memory must come from `nativeBytes`. */
  pointer(at: number, memory: Buffer): this {
    this.#kept.push(memory)
    const address = this.#calls.addressOf(memory.buffer) + BigInt(memory.byteOffset)
    this.bytes.writeBigUInt64LE(address, at)
    return this
  }

  /** A name for bpftool, of at most 15 characters. */
  name(at: number, text: string): this {
    this.bytes.write(text.slice(0, 15), at, 'latin1')
    return this
  }
}

/**
 * Memory that never moves. A small buffer that Node makes may be in the heap, where it can move.
 */
export function nativeBytes(size: number): Buffer {
  return Buffer.from(new ArrayBuffer(size))
}

export function nativeCopy(bytes: Uint8Array): Buffer {
  const copy = nativeBytes(bytes.length)
  copy.set(bytes)
  return copy
}

/** A path or another text, with its closing zero byte. */
export function nativeText(text: string): Buffer {
  return nativeCopy(Buffer.from(`${text}\0`))
}
