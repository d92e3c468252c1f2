import { sha256 } from '../state/sha256.js'

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
