import { getSystemErrorMap } from 'node:util'

/**
 * Error numbers of Linux, the same on all architectures that Node runs on. The calls of this
 * folder return them as negative numbers, like the kernel.
 */
export const errno = {
  ENOENT: 2,
  EINTR: 4,
  EAGAIN: 11,
  ENFILE: 23,
  EMFILE: 24,
  EPIPE: 32,
  EADDRINUSE: 98,
  EADDRNOTAVAIL: 99,
  ECONNRESET: 104,
  ENOBUFS: 105,
  ETOOMANYREFS: 109,
  ETIMEDOUT: 110,
  ECONNREFUSED: 111,
  EALREADY: 114,
  EINPROGRESS: 115,
} as const

const names = new Map<number, string>([
  ...Array.from(getSystemErrorMap(), ([value, [name]]) => [-value, name] as const),
  // Node does not know all of them.
  ...Object.entries(errno).map(([name, value]) => [value, name] as const),
])

/** `ECONNREFUSED` for 111 and for -111. */
export function errnoName(code: number): string {
  const value = Math.abs(code)
  return names.get(value) ?? `errno ${value}`
}

/** A failed call, with a `code` like Node's own errors. */
export class SystemCallError extends Error {
  override readonly name = 'SystemCallError'
  readonly code: string

  constructor(what: string, result: number) {
    const code = errnoName(result)
    super(`${what}: ${code}`)
    this.code = code
  }
}
