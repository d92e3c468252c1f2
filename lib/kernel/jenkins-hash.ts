import { addressBytes } from './addresses.js'

/**
 * The hash that the kernel calls jhash (Jenkins' lookup3), on a little-endian machine. Another seed
 * makes another hash. This program uses it to know what nftables rules do with a client.
 */
export function jenkinsHash(bytes: Uint8Array, seed: number): number {
  // Bytes that the last block lacks count as zero.
  const blocks = Math.max(1, Math.ceil(bytes.length / blockBytes))
  const padded = new Uint8Array(blocks * blockBytes)
  padded.set(bytes)
  const words = new DataView(padded.buffer)
  const start = (0xdeadbeef + bytes.length + seed) | 0
  let state: State = [start, start, start]
  for (let block = 0; block < blocks; block++) {
    if (block > 0) state = mix(state)
    const [a, b, c] = state
    const word = (index: number) => words.getInt32(block * blockBytes + index * 4, true)
    state = [(a + word(0)) | 0, (b + word(1)) | 0, (c + word(2)) | 0]
  }
  return finish(state) >>> 0
}

/** The bucket, counted from 0, that the kernel chooses for the address of a client. */
export function sourceBucket(address: string, buckets: number): number {
  return scale(jenkinsHash(addressBytes(address) ?? new Uint8Array(), sourceSeed), buckets)
}

/** One seed for all nodes and all modes, so that they send a client to the same endpoint. */
export const sourceSeed = 0x6b707473

/** Spreads a hash over so many numbers from 0, as the kernel does: without a division. */
export function scale(hash: number, buckets: number): number {
  return Math.floor((hash * buckets) / 2 ** 32)
}

type State = readonly [a: number, b: number, c: number]

const blockBytes = 12

const turned = (value: number, bits: number) => (value << bits) | (value >>> (32 - bits))

function mix([a, b, c]: State): State {
  a = ((a - c) | 0) ^ turned(c, 4)
  c = (c + b) | 0
  b = ((b - a) | 0) ^ turned(a, 6)
  a = (a + c) | 0
  c = ((c - b) | 0) ^ turned(b, 8)
  b = (b + a) | 0
  a = ((a - c) | 0) ^ turned(c, 16)
  c = (c + b) | 0
  b = ((b - a) | 0) ^ turned(a, 19)
  a = (a + c) | 0
  c = ((c - b) | 0) ^ turned(b, 4)
  b = (b + a) | 0
  return [a, b, c]
}

function finish([a, b, c]: State): number {
  c = ((c ^ b) - turned(b, 14)) | 0
  a = ((a ^ c) - turned(c, 11)) | 0
  b = ((b ^ a) - turned(a, 25)) | 0
  c = ((c ^ b) - turned(b, 16)) | 0
  a = ((a ^ c) - turned(c, 4)) | 0
  b = ((b ^ a) - turned(a, 14)) | 0
  return ((c ^ b) - turned(b, 24)) | 0
}
