import type { Libc } from './libc.js'

/**
 * Bytes that the kernel reads and writes at a fixed address. Passing the address as a number
 * saves the look-up of a buffer in each call, and makes offsets free.
 */
export interface NativeMemory {
  readonly bytes: Buffer
  readonly view: DataView
  /** Below 2^47 on the architectures we know, so exact as a number. */
  readonly address: number
}

/** An ArrayBuffer of its own: small typed arrays may live in the heap, which moves. */
export function allocateNative(libc: Pick<Libc, 'addressOf'>, size: number): NativeMemory {
  const memory = new ArrayBuffer(size)
  return {
    bytes: Buffer.from(memory),
    view: new DataView(memory),
    address: libc.addressOf(memory),
  }
}
