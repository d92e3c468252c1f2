import { isLittleEndian } from '../byte-order.js'
import { KernelError } from '../../errors.js'
import { failureOf, kernelErrorOf } from './failure.js'
import { openLibc, type Libc } from './libc.js'

const addressFamily = 16
const rawCloseOnExec = 3 | 0x80000
const doNotWait = 0x40
const reportTruncation = 0x20

const socketLevel = 1
const sendBufferForce = 32
const receiveBufferForce = 33

const netlinkLevel = 270
const addMembership = 1
const capAck = 10
const extendedAck = 11

const errnos = { intr: 4, again: 11, nobufs: 105 } as const

/** Dumps come in parts of at most 32 KiB; twice that leaves room for one oversized message. */
const receiveBytes = 64 * 1024

/** What one attempt to receive brought. The datagram is overwritten by the next receive. */
export type Received =
  | { readonly kind: 'datagram'; readonly data: Buffer }
  | { readonly kind: 'nothing' }
  /** The socket's buffer overflowed: messages are lost. */
  | { readonly kind: 'overrun' }

/** A datagram pipe to the kernel; the seam at which unit tests put a fake. */
export interface NetlinkPipe {
  send(data: Uint8Array): void
  receive(): Received
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
  return pipeOver({ libc, fd })
}

interface OpenSocket {
  readonly libc: Libc
  readonly fd: number
}

const errorOf = (libc: Libc, action: string) => kernelErrorOf(failureOf(libc.errno()), action)

function setOption({ libc, fd }: OpenSocket, level: number, name: number, value: number): boolean {
  const bytes = int32(value)
  return libc.setsockopt(fd, level, name, bytes, bytes.length) === 0
}

function configure(socket: OpenSocket, protocol: number, options: SocketOptions): void {
  const { libc, fd } = socket
  const address = Buffer.alloc(12)
  address.set(
    int32(addressFamily)
      .subarray(isLittleEndian ? 0 : 2)
      .subarray(0, 2),
  )
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

function pipeOver(socket: OpenSocket): NetlinkPipe {
  const { libc, fd } = socket
  const buffer = Buffer.allocUnsafe(receiveBytes)
  let sendBuffer = 0
  let closed = false
  return {
    send(data) {
      if (closed) throw new KernelError('failed', 'send to netlink: the socket is closed')
      // The kernel refuses a datagram larger than the socket's send buffer (EMSGSIZE).
      if (data.length > 65_536 && data.length > sendBuffer) {
        sendBuffer = data.length * 2
        setOption(socket, socketLevel, sendBufferForce, sendBuffer)
      }
      for (;;) {
        if (libc.send(fd, data, data.length, 0) >= 0) return
        if (libc.errno() !== errnos.intr)
          throw errorOf(libc, `send ${data.length} bytes to netlink`)
      }
    },
    receive() {
      if (closed) return { kind: 'nothing' }
      for (;;) {
        const length = libc.recv(fd, buffer, buffer.length, doNotWait | reportTruncation)
        if (length > buffer.length) return { kind: 'overrun' }
        if (length >= 0) return { kind: 'datagram', data: buffer.subarray(0, length) }
        const errno = libc.errno()
        if (errno === errnos.again) return { kind: 'nothing' }
        if (errno === errnos.nobufs) return { kind: 'overrun' }
        if (errno !== errnos.intr) throw errorOf(libc, 'receive from netlink')
      }
    },
    close() {
      if (!closed) libc.close(fd)
      closed = true
    },
  }
}

function int32(value: number): Buffer {
  const bytes = Buffer.alloc(4)
  if (isLittleEndian) bytes.writeInt32LE(value)
  else bytes.writeInt32BE(value)
  return bytes
}
