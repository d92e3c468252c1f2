import { promisify } from 'node:util'
import koffi from 'koffi'
import { KernelError } from '../../errors.js'
import { failureOf, kernelErrorOf } from './failure.js'
import { hostBytes } from './protocol.js'
import { errno } from '../sockets/errno.js'

const addressFamily = 16
const rawCloseOnExec = 3 | 0x80000
const doNotWait = 0x40
const reportTruncation = 0x20

const socketLevel = 1
const sendBufferForce = 32
const receiveBufferForce = 33

const netlinkLevel = 270
const addMembership = 1
const dropMembership = 2
const capAck = 10
const extendedAck = 11

/** Dumps come in parts of at most 32 KiB; twice that leaves room for one larger message. */
const receiveBytes = 64 * 1024

/** The system calls netlink needs. Each takes about 0.2 us to enter from here. */
export interface Libc {
  socket(domain: number, type: number, protocol: number): number
  bind(fd: number, address: Uint8Array, length: number): number
  setsockopt(fd: number, level: number, name: number, value: Uint8Array, length: number): number
  send(fd: number, data: Uint8Array, length: number, flags: number): number
  /** `send` on another thread. The error number of a failure stays there. */
  sendAside(fd: number, data: Uint8Array, length: number, flags: number): Promise<number>
  recv(fd: number, into: Uint8Array, length: number, flags: number): number
  close(fd: number): number
  /** The error number of the last call. */
  errno(): number
}

/** Opens the C library of this process; nothing is loaded before it is needed. */
function openLibc(): Libc {
  const library = koffi.load(null)
  const send = library.func('long send(int, const void *, size_t, int)')
  return {
    socket: library.func('int socket(int, int, int)'),
    bind: library.func('int bind(int, const void *, unsigned int)'),
    setsockopt: library.func('int setsockopt(int, int, int, const void *, unsigned int)'),
    send,
    sendAside: promisify(send.async) as Libc['sendAside'],
    recv: library.func('long recv(int, void *, size_t, int)'),
    close: library.func('int close(int)'),
    errno: () => koffi.errno(),
  }
}

/** The result of one attempt to receive. The next receive overwrites the datagram. */
export type Received =
  | { readonly kind: 'datagram'; readonly data: Buffer }
  | { readonly kind: 'nothing' }
  /** The socket's buffer overflowed: messages are lost. */
  | { readonly kind: 'overrun' }

/** A datagram pipe to the kernel. Unit tests put a fake here. */
export interface NetlinkPipe {
  send(data: Uint8Array): void
  /** The same, while the event loop goes on: the kernel works for long. */
  sendAside(data: Uint8Array): Promise<void>
  receive(): Received
  /** Joins or leaves its multicast groups; false where the kernel refuses. */
  hear(isWanted: boolean): boolean
  close(): void
}

export interface SocketOptions {
  /** Multicast groups to join, by number. */
  readonly groups?: readonly number[]
  readonly receiveBufferBytes?: number
}

export type OpenPipe = (protocol: number, options?: SocketOptions) => NetlinkPipe

/**
 * Opens a netlink socket of this network namespace. It never waits: the kernel answers requests
 * while they are being sent, so an answer is there as soon as `send` returns.
 */
export function openSocket(
  protocol: number,
  options: SocketOptions = {},
  libc: Libc = openLibc(),
): NetlinkPipe {
  const fd = libc.socket(addressFamily, rawCloseOnExec, protocol)
  if (fd < 0) throw errorOf(libc, `open netlink socket for protocol ${protocol}`)
  try {
    configure({ libc, fd }, protocol, options)
  } catch (error) {
    libc.close(fd)
    throw error
  }
  return pipeOver({ libc, fd }, options.groups ?? [])
}

interface OpenSocket {
  readonly libc: Libc
  readonly fd: number
}

const errorOf = (libc: Libc, action: string) => kernelErrorOf(failureOf(libc.errno()), action)

function setOption({ libc, fd }: OpenSocket, level: number, name: number, value: number): boolean {
  const bytes = hostBytes(value)
  return libc.setsockopt(fd, level, name, bytes, bytes.length) === 0
}

function configure(socket: OpenSocket, protocol: number, options: SocketOptions): void {
  const { libc, fd } = socket
  const address = Buffer.alloc(12)
  address.set(new Uint8Array(Uint16Array.of(addressFamily).buffer))
  if (libc.bind(fd, address, address.length) !== 0) {
    throw errorOf(libc, `bind netlink socket for protocol ${protocol}`)
  }
  // Kernels before 4.12 know neither option; their errors come without texts.
  setOption(socket, netlinkLevel, extendedAck, 1)
  setOption(socket, netlinkLevel, capAck, 1)
  if (options.receiveBufferBytes !== undefined) {
    setOption(socket, socketLevel, receiveBufferForce, options.receiveBufferBytes)
  }
  for (const group of options.groups ?? []) {
    if (setOption(socket, netlinkLevel, addMembership, group)) continue
    throw errorOf(libc, `join netlink group ${group} of protocol ${protocol}`)
  }
}

function pipeOver(socket: OpenSocket, groups: readonly number[]): NetlinkPipe {
  const { libc, fd } = socket
  const buffer = Buffer.allocUnsafe(receiveBytes)
  let sendBuffer = 0
  let closed = false
  const makeRoom = (data: Uint8Array) => {
    if (closed) throw new KernelError('failed', 'send to netlink: the socket is closed')
    // The kernel refuses a datagram larger than the socket's send buffer (EMSGSIZE).
    if (data.length <= 65_536 || data.length <= sendBuffer) return
    sendBuffer = data.length * 2
    setOption(socket, socketLevel, sendBufferForce, sendBuffer)
  }
  const send = (data: Uint8Array) => {
    makeRoom(data)
    for (;;) {
      if (libc.send(fd, data, data.length, 0) >= 0) return
      if (libc.errno() !== errno.EINTR) throw errorOf(libc, `send ${data.length} bytes to netlink`)
    }
  }
  return {
    send,
    async sendAside(data) {
      makeRoom(data)
      // What was not sent is sent from here, where the reason is known if it fails again.
      if ((await libc.sendAside(fd, data, data.length, 0)) < 0) send(data)
    },
    receive() {
      if (closed) return { kind: 'nothing' }
      for (;;) {
        const length = libc.recv(fd, buffer, buffer.length, doNotWait | reportTruncation)
        if (length > buffer.length) return { kind: 'overrun' }
        if (length >= 0) return { kind: 'datagram', data: buffer.subarray(0, length) }
        const error = libc.errno()
        if (error === errno.EAGAIN) return { kind: 'nothing' }
        if (error === errno.ENOBUFS) return { kind: 'overrun' }
        if (error !== errno.EINTR) throw errorOf(libc, 'receive from netlink')
      }
    },
    hear(isWanted) {
      if (closed) return false
      const option = isWanted ? addMembership : dropMembership
      return groups.every((group) => setOption(socket, netlinkLevel, option, group))
    },
    close() {
      if (!closed) libc.close(fd)
      closed = true
    },
  }
}
