import koffi from 'koffi'

/** The system calls netlink needs. Each takes about 0.2 us to enter from here. */
export interface Libc {
  socket(domain: number, type: number, protocol: number): number
  bind(fd: number, address: Uint8Array, length: number): number
  setsockopt(fd: number, level: number, name: number, value: Uint8Array, length: number): number
  send(fd: number, data: Uint8Array, length: number, flags: number): number
  recv(fd: number, into: Uint8Array, length: number, flags: number): number
  close(fd: number): number
  /** The error of the call made last. */
  errno(): number
}

/** Opens the C library of this process; nothing is loaded before it is needed. */
export function openLibc(): Libc {
  const library = koffi.load(null)
  return {
    socket: library.func('int socket(int, int, int)'),
    bind: library.func('int bind(int, const void *, unsigned int)'),
    setsockopt: library.func('int setsockopt(int, int, int, const void *, unsigned int)'),
    send: library.func('long send(int, const void *, size_t, int)'),
    recv: library.func('long recv(int, void *, size_t, int)'),
    close: library.func('int close(int)'),
    errno: () => koffi.errno(),
  }
}
