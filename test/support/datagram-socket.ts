import { rmSync } from 'node:fs'
import koffi from 'koffi'

/** A unix datagram socket that receives, as systemd has one. Node has no such sockets. */
export interface DatagramSocket {
  /** Datagrams that are not read yet. */
  received(): readonly string[]
  close(): void
}

/** `@` at the beginning of the path makes an abstract socket. */
export function listenForDatagrams(path: string): DatagramSocket {
  const libc = koffi.load(null)
  const socket = libc.func('int socket(int, int, int)') as (...of: number[]) => number
  const bind = libc.func('int bind(int, const void *, unsigned int)') as (
    fd: number,
    address: Buffer,
    length: number,
  ) => number
  const recv = libc.func('long recv(int, void *, size_t, int)') as (
    fd: number,
    into: Buffer,
    length: number,
    flags: number,
  ) => number
  const close = libc.func('int close(int)') as (fd: number) => number
  const fd = socket(1, 2, 0)
  const address = Buffer.concat([Buffer.from([1, 0]), Buffer.from(path)])
  if (path.startsWith('@')) address[2] = 0
  if (bind(fd, address, address.length) !== 0) throw new Error(`bind ${path}: ${koffi.errno()}`)
  return {
    received: () => {
      const messages: string[] = []
      const buffer = Buffer.alloc(4096)
      for (;;) {
        const length = recv(fd, buffer, buffer.length, 0x40)
        if (length < 0) return messages
        messages.push(buffer.toString('utf8', 0, length))
      }
    },
    close: () => {
      close(fd)
      if (!path.startsWith('@')) rmSync(path)
    },
  }
}
