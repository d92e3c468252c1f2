import { setTimeout as delay } from 'node:timers/promises'
import koffi from 'koffi'
import { ifPossible, KernelError } from '../../errors.js'
import { nonBlockingCloexec } from '../../kernel/sockets/libc.js'
import { encodeAddress } from '../../kernel/sockets/socket-address.js'
import { parseIp, type IpFamily } from '../../state/ip.js'

const domains = { IPv4: 2, IPv6: 10 } as const

const socketTypes = { stream: 1, raw: 3 } as const

/** Numbers of protocols, by IP family. */
const protocols = {
  tcp: { IPv4: 6, IPv6: 6 },
  icmp: { IPv4: 1, IPv6: 58 },
  udp: { IPv4: 17, IPv6: 17 },
  sctp: { IPv4: 132, IPv6: 132 },
} as const

function bindFunctions() {
  const libc = koffi.load(null)
  return {
    socket: libc.func('int socket(int domain, int type, int protocol)'),
    bind: libc.func('int bind(int fd, const uint8_t *address, uint32_t length)'),
    send: libc.func(
      'long sendto(int fd, const uint8_t *bytes, size_t count, int flags, const uint8_t *address, uint32_t length)',
    ),
    receive: libc.func('long recv(int fd, _Out_ uint8_t *buffer, size_t length, int flags)'),
    option: libc.func(
      'int getsockopt(int fd, int level, int name, _Out_ uint8_t *value, _Inout_ uint32_t *length)',
    ),
    close: libc.func('int close(int fd)'),
  }
}

let bound: ReturnType<typeof bindFunctions> | undefined

/** Bound when the first socket opens: other systems have other functions. */
const functions = () => (bound ??= bindFunctions())

const pollMs = 2
const pendingError = { level: 1, name: 4 }

/** A socket that Node cannot make. It never blocks. Raw sockets send and receive whole messages. */
export class NativeSocket {
  readonly descriptor: number
  readonly family: IpFamily

  constructor(host: string, type: keyof typeof socketTypes, protocol: keyof typeof protocols) {
    this.family = parseIp(host)?.family ?? 'IPv4'
    const number = protocols[protocol][this.family]
    const descriptor: unknown = functions().socket(
      domains[this.family],
      socketTypes[type] | nonBlockingCloexec,
      number,
    )
    if (typeof descriptor !== 'number' || descriptor < 0) throw failure(`open a ${protocol} socket`)
    this.descriptor = descriptor
  }

  bind(ip: string, port: number): void {
    const address = encodeAddress({ ip, port })
    const result: unknown = functions().bind(this.descriptor, address, address.length)
    if (result !== 0) throw failure(`bind to ${ip}:${port}`)
  }

  send(bytes: Uint8Array, ip: string): void {
    const address = encodeAddress({ ip, port: 0 })
    const length = bytes.length
    const sent: unknown = functions().send(
      this.descriptor,
      bytes,
      length,
      0,
      address,
      address.length,
    )
    if (sent !== bytes.length) throw failure(`send to ${ip}`)
  }

  /** What has arrived, without its IP header; undefined while there is nothing. */
  receive(): Buffer | undefined {
    const buffer = Buffer.alloc(65_536)
    const count: unknown = functions().receive(this.descriptor, buffer, buffer.length, 0)
    if (typeof count !== 'number' || count < 0) return undefined
    // A raw IPv4 socket hands over the header, a raw IPv6 socket does not.
    const start = this.family === 'IPv4' ? (buffer.readUInt8(0) & 15) * 4 : 0
    return buffer.subarray(start, count)
  }

  /** What `read` makes of the first message that it takes; undefined if none comes in this time. */
  async first<T>(timeoutMs: number, read: (message: Buffer) => T | undefined) {
    for (const end = performance.now() + timeoutMs; performance.now() < end;) {
      for (let got = this.receive(); got !== undefined; got = this.receive()) {
        const found = read(got)
        if (found !== undefined) return found
      }
      await delay(pollMs)
    }
    return undefined
  }

  /** The number of the pending error, or 0. Reading clears it. */
  takeError(): number {
    const value = Buffer.alloc(4)
    const length = [value.length]
    functions().option(this.descriptor, pendingError.level, pendingError.name, value, length)
    return value.readInt32LE()
  }

  close(): void {
    functions().close(this.descriptor)
  }
}

/**
 * Node has no SCTP, but a one-to-one SCTP socket behaves like a TCP socket for everything after
 * socket(2), and node:net accepts it as a file descriptor.
 */
export function openSctpSocket(host: string): NativeSocket {
  return new NativeSocket(host, 'stream', 'sctp')
}

export function openSctpServerSocket(host: string, port: number): number {
  const socket = openSctpSocket(host)
  socket.bind(host, port)
  return socket.descriptor
}

/** Whether the kernel has SCTP (S28). */
export function hasSctp(): boolean {
  const socket = ifPossible(() => openSctpSocket('127.0.0.1'))
  socket?.close()
  return socket !== undefined
}

/** The Internet checksum of some bytes. An odd last byte is padded with 0. */
export function checksum(bytes: Uint8Array): number {
  let sum = 0
  bytes.forEach((byte, at) => (sum += at % 2 === 0 ? byte * 256 : byte))
  while (sum > 0xffff) sum = (sum % 0x1_0000) + Math.floor(sum / 0x1_0000)
  return 0xffff - sum
}

function failure(action: string): KernelError {
  return new KernelError('unsupported', `${action}: errno ${koffi.errno()}`)
}
