/**
 * The SHA-256 of a text as 32 bytes (FIPS 180-4). Planners also run in a browser, where the
 * built-in function is asynchronous.
 */
export function sha256(text: string): Uint8Array {
  const message = padded(new TextEncoder().encode(text))
  const words = new DataView(message.buffer)
  const state = Int32Array.from(start)
  const schedule = new Int32Array(64)
  for (let at = 0; at < message.length; at += 64) {
    for (let index = 0; index < 16; index++) schedule[index] = words.getInt32(at + 4 * index)
    extend(schedule)
    compress(state, schedule)
  }
  const digest = new Uint8Array(32)
  const view = new DataView(digest.buffer)
  state.forEach((word, index) => view.setInt32(4 * index, word))
  return digest
}

/** Appends a one bit, zeros, and the length in bits, so that blocks of 64 bytes are full. */
function padded(bytes: Uint8Array): Uint8Array<ArrayBuffer> {
  const length = ((bytes.length + 8) >> 6) * 64 + 64
  const message = new Uint8Array(length)
  message.set(bytes)
  message[bytes.length] = 0x80
  const words = new DataView(message.buffer)
  words.setUint32(length - 8, Math.floor(bytes.length / 2 ** 29))
  words.setUint32(length - 4, bytes.length << 3)
  return message
}

function extend(words: Int32Array): void {
  for (let index = 16; index < 64; index++) {
    const near = words[index - 15] ?? 0
    const far = words[index - 2] ?? 0
    const one = turned(near, 7) ^ turned(near, 18) ^ (near >>> 3)
    const two = turned(far, 17) ^ turned(far, 19) ^ (far >>> 10)
    words[index] = (words[index - 16] ?? 0) + one + (words[index - 7] ?? 0) + two
  }
}

function compress(state: Int32Array, schedule: Int32Array): void {
  let [a = 0, b = 0, c = 0, d = 0, e = 0, f = 0, g = 0, h = 0] = state
  for (let round = 0; round < 64; round++) {
    const mixed = turned(e, 6) ^ turned(e, 11) ^ turned(e, 25)
    const chosen = (e & f) ^ (~e & g)
    const one = (h + mixed + chosen + (constants[round] ?? 0) + (schedule[round] ?? 0)) | 0
    const most = (a & b) ^ (a & c) ^ (b & c)
    const two = ((turned(a, 2) ^ turned(a, 13) ^ turned(a, 22)) + most) | 0
    h = g
    g = f
    f = e
    e = (d + one) | 0
    d = c
    c = b
    b = a
    a = (one + two) | 0
  }
  const mixed = [a, b, c, d, e, f, g, h]
  for (let index = 0; index < 8; index++) {
    state[index] = (state[index] ?? 0) + (mixed[index] ?? 0)
  }
}

function turned(word: number, bits: number): number {
  return (word >>> bits) | (word << (32 - bits))
}

/** For each of the first `count` prime numbers: the first 32 bits behind the point of its root. */
function fractions(count: number, root: (prime: number) => number): readonly number[] {
  const found: number[] = []
  for (let number = 2; found.length < count; number++) {
    if (isPrime(number)) found.push(Math.floor((root(number) % 1) * 2 ** 32))
  }
  return found
}

function isPrime(number: number): boolean {
  for (let divisor = 2; divisor * divisor <= number; divisor++) {
    if (number % divisor === 0) return false
  }
  return true
}

const start = fractions(8, Math.sqrt)
const constants = Int32Array.from(fractions(64, Math.cbrt))

const base32 = 'ABCDEFGHIJKLMNOPQRSTUVWXYZ234567'

/** The first `length` characters of the SHA-256 in base32 (RFC 4648): 5 bits each. */
export function nameHash(text: string, length: number): string {
  let hash = ''
  let bits = 0
  let buffer = 0
  for (const byte of sha256(text)) {
    buffer = ((buffer << 8) | byte) & 0xffff
    for (bits += 8; bits >= 5 && hash.length < length; bits -= 5) {
      hash += base32.charAt((buffer >> (bits - 5)) & 31)
    }
    if (hash.length === length) break
  }
  return hash
}
