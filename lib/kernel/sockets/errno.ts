/**
 * Error numbers of Linux, the same on all architectures that Node runs on. The calls of this
 * folder return them as negative numbers, like the kernel.
 */
export const errno = {
  EPERM: 1,
  ENOENT: 2,
  EINTR: 4,
  EBADF: 9,
  EAGAIN: 11,
  ENOMEM: 12,
  EACCES: 13,
  EINVAL: 22,
  ENFILE: 23,
  EMFILE: 24,
  EPIPE: 32,
  EPROTO: 71,
  EOPNOTSUPP: 95,
  EAFNOSUPPORT: 97,
  EADDRINUSE: 98,
  EADDRNOTAVAIL: 99,
  ENETDOWN: 100,
  ENETUNREACH: 101,
  ECONNABORTED: 103,
  ECONNRESET: 104,
  ENOBUFS: 105,
  ENOTCONN: 107,
  ETOOMANYREFS: 109,
  ETIMEDOUT: 110,
  ECONNREFUSED: 111,
  EHOSTDOWN: 112,
  EHOSTUNREACH: 113,
  EALREADY: 114,
  EINPROGRESS: 115,
} as const

const names = new Map<number, string>(Object.entries(errno).map(([name, value]) => [value, name]))

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
