/**
 * Random numbers of the web platform, because this server runs in a browser, too. There
 * `crypto.randomUUID` exists only on pages of HTTPS, so the UID is put together here.
 */
export function randomBytes(count: number): Uint8Array<ArrayBuffer> {
  return globalThis.crypto.getRandomValues(new Uint8Array(count))
}

/** A UUID of version 4 (RFC 9562). */
export function randomUid(): string {
  const bytes = randomBytes(16)
  bytes[6] = ((bytes[6] ?? 0) & 0x0f) | 0x40
  bytes[8] = ((bytes[8] ?? 0) & 0x3f) | 0x80
  const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('')
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-')
}
