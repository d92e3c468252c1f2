import koffi from 'koffi'
import { failureOf, kernelErrorOf } from '../netlink/failure.js'

const inet = 2
const datagramCloseOnExec = 2 | 0x80000
const socketLevel = 1
const networkCookieOption = 71

/**
 * The kernel's number of the network namespace of this process. eBPF programs see the same number.
 */
export function networkCookie(): bigint {
  return cookieReader()()
}

/** Binds the calls once for many namespaces: binding takes ten times as long as calling. */
export function cookieReader(): () => bigint {
  const library = koffi.load(null)
  const socket = library.func('int socket(int, int, int)')
  const getsockopt = library.func('int getsockopt(int, int, int, void *, void *)')
  const close = library.func('int close(int)')
  const action = 'ask for the number of this network namespace'
  return () => {
    const fd = Number(socket(inet, datagramCloseOnExec, 0))
    if (fd < 0) throw kernelErrorOf(failureOf(koffi.errno()), action)
    try {
      const cookie = Buffer.alloc(8)
      const length = Buffer.from(Uint32Array.of(cookie.length).buffer)
      if (getsockopt(fd, socketLevel, networkCookieOption, cookie, length) !== 0) {
        throw kernelErrorOf(failureOf(koffi.errno()), action)
      }
      return cookie.readBigUInt64LE(0)
    } finally {
      close(fd)
    }
  }
}
