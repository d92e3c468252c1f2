import type { Libc } from './libc.js'

/**
 * Bytes that the kernel reads and writes at a fixed address. The address is passed as a number,
 * which saves looking up a buffer in each call, and offsets cost nothing.
 */
export interface NativeMemory {
  readonly bytes: Buffer
  readonly view: DataView
  /** Below 2^47 on all supported architectures, so it is exact as a number. */
  readonly address: number
}

/** Allocates an ArrayBuffer: small typed arrays may be in the heap, where they move. */
export function allocateNative(libc: Pick<Libc, 'addressOf'>, size: number): NativeMemory {
  const memory = new ArrayBuffer(size)
  return {
    bytes: Buffer.from(memory),
    view: new DataView(memory),
    address: libc.addressOf(memory),
  }
}
