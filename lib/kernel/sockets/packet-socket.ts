import { setTimeout as sleep } from 'node:timers/promises'
import { errno, SystemCallError } from './errno.js'
import {
  allocateNative,
  nonBlockingCloexec,
  type Libc,
  type Watch,
  type NativeMemory,
} from './libc.js'

/** Text, and descriptors that the sender passed along. */
export interface Packet {
  readonly text: string
  readonly descriptors: readonly number[]
}

const unixFamily = 1
const sequencedPackets = 5
const noSignal = 0x4000
const closeOnExec = 0x40000000
const socketLevel = 1
const rights = 1

const acceptAgainMs = 50
const maxText = 1 << 16
/** The kernel allows 253 in a packet. */
export const maxDescriptors = 64

const header = { vector: 16, vectorCount: 24, control: 32, controlLength: 40, size: 56 } as const
const controlHeaderBytes = 16
const pathOffset = 2
const maxPath = 107
const retryMs = 2
const sendPatienceMs = 10_000

/** Whether the error only means that the receiver reads slowly. */
const isBusy = (result: number) =>
  result === -errno.EAGAIN || result === -errno.ENOBUFS || result === -errno.ETOOMANYREFS

/** Whether a process listens, and so many wait for it already that it cannot be reached now. */
export const isQueueFull = (error: unknown): boolean =>
  error instanceof SystemCallError && error.code === 'EAGAIN'

/**
 * One end of a connection between two processes of this machine (SOCK_SEQPACKET). It keeps packets
 * apart and carries open descriptors (SCM_RIGHTS). It is made for few messages, not for traffic.
 */
export class PacketSocket {
  readonly #libc: Libc
  readonly #fd: number
  readonly #watch: Watch
  readonly #message: NativeMemory
  readonly #vector: NativeMemory
  readonly #control: NativeMemory
  readonly #text: NativeMemory
  readonly #controlRoom: number
  readonly #packets: Packet[] = []
  #isEnded = false
  #isClosed = false
  #wake: () => void = () => undefined

  /** The kernel closes descriptors that come to an end that takes none. */
  constructor(libc: Libc, fd: number, options: { readonly takesDescriptors: boolean }) {
    this.#libc = libc
    this.#fd = fd
    this.#message = allocateNative(libc, header.size)
    this.#vector = allocateNative(libc, 16)
    this.#control = allocateNative(libc, controlHeaderBytes + 4 * maxDescriptors)
    this.#text = allocateNative(libc, maxText)
    this.#controlRoom = options.takesDescriptors ? this.#control.bytes.length : 0
    this.#watch = libc.watch(fd, () => this.#readAll())
  }

  /** Throws SystemCallError: ENOENT or ECONNREFUSED when no process listens there. */
  static connect(libc: Libc, path: string): PacketSocket {
    const fd = openSocket(libc)
    const address = encodePath(libc, path)
    const result = libc.connect(fd, address.address, address.bytes.length)
    if (result < 0) {
      libc.close(fd)
      throw new SystemCallError(`connect to ${path}`, result)
    }
    return new PacketSocket(libc, fd, { takesDescriptors: true })
  }

  /** The descriptors stay open in this process too. */
  async send(text: string, descriptors: readonly number[] = []): Promise<void> {
    const until = performance.now() + sendPatienceMs
    for (;;) {
      const result = this.#isClosed ? -errno.EPIPE : this.#trySend(text, descriptors)
      if (result >= 0) return
      if (!isBusy(result) || performance.now() > until) {
        throw new SystemCallError('send to the other process', result)
      }
      await sleep(retryMs)
    }
  }

  /** The next packet, or undefined when the other end has closed. */
  async receive(): Promise<Packet | undefined> {
    for (;;) {
      const packet = this.#packets.shift()
      if (packet || this.#isEnded) return packet
      await new Promise<void>((resolve) => (this.#wake = resolve))
    }
  }

  close(): void {
    if (this.#isClosed) return
    this.#isClosed = true
    this.#isEnded = true
    this.#watch.close()
    this.#libc.close(this.#fd)
    for (const { descriptors } of this.#packets.splice(0)) {
      for (const descriptor of descriptors) this.#libc.close(descriptor)
    }
    this.#wake()
  }

  #trySend(text: string, descriptors: readonly number[]): number {
    const length = this.#text.bytes.write(text)
    const bytes = controlHeaderBytes + 4 * descriptors.length
    this.#prepare(length, descriptors.length === 0 ? 0 : bytes)
    const { view } = this.#control
    view.setBigUint64(0, BigInt(bytes), true)
    view.setInt32(8, socketLevel, true)
    view.setInt32(12, rights, true)
    for (const [index, descriptor] of descriptors.entries()) {
      view.setInt32(controlHeaderBytes + 4 * index, descriptor, true)
    }
    return this.#libc.sendmsg(this.#fd, this.#message.address, noSignal)
  }

  #readAll(): void {
    while (!this.#isEnded) {
      this.#prepare(maxText, this.#controlRoom)
      const count = this.#libc.recvmsg(this.#fd, this.#message.address, closeOnExec)
      if (count === -errno.EAGAIN) break
      if (count <= 0) {
        this.#isEnded = true
        this.#watch.stop()
      } else {
        const text = this.#text.bytes.toString('utf8', 0, count)
        this.#packets.push({ text, descriptors: this.#receivedDescriptors() })
      }
    }
    this.#wake()
  }

  #receivedDescriptors(): readonly number[] {
    const { view } = this.#control
    const given = Number(this.#message.view.getBigUint64(header.controlLength, true))
    if (given < controlHeaderBytes || view.getInt32(12, true) !== rights) return []
    const count = (Number(view.getBigUint64(0, true)) - controlHeaderBytes) / 4
    return Array.from({ length: count }, (_, index) =>
      view.getInt32(controlHeaderBytes + 4 * index, true),
    )
  }

  #prepare(textLength: number, controlLength: number): void {
    this.#vector.view.setBigUint64(0, BigInt(this.#text.address), true)
    this.#vector.view.setBigUint64(8, BigInt(textLength), true)
    const { view } = this.#message
    view.setBigUint64(header.vector, BigInt(this.#vector.address), true)
    view.setBigUint64(header.vectorCount, 1n, true)
    view.setBigUint64(header.control, BigInt(this.#control.address), true)
    view.setBigUint64(header.controlLength, BigInt(controlLength), true)
  }
}

/**
 * Waits for other processes at a path of the file system. Only the same user may connect. The server
 * gives descriptors and takes none: those that came along with a message would stay open for ever.
 */
export class PacketServer {
  readonly #libc: Libc
  readonly #fd: number
  readonly #watch: Watch
  #timer: NodeJS.Timeout | undefined

  constructor(libc: Libc, path: string, connected: (socket: PacketSocket) => void) {
    this.#libc = libc
    this.#fd = openSocket(libc)
    const address = encodePath(libc, path)
    const mask = process.umask(0o177)
    const bound = libc.bind(this.#fd, address.address, address.bytes.length)
    process.umask(mask)
    const result = bound < 0 ? bound : libc.listen(this.#fd, 1)
    if (result < 0) {
      libc.close(this.#fd)
      throw new SystemCallError(`listen on ${path}`, result)
    }
    this.#watch = libc.watch(this.#fd, () => {
      const fd = libc.accept4(this.#fd, 0, 0, nonBlockingCloexec)
      if (fd >= 0) connected(new PacketSocket(libc, fd, { takesDescriptors: false }))
      else if (fd !== -errno.EAGAIN) this.#pause()
    })
  }

  close(): void {
    clearTimeout(this.#timer)
    this.#watch.close()
    this.#libc.close(this.#fd)
  }

  /**
   * Stops listening for a moment. A connection that cannot be accepted, because no descriptors are
   * left, stays in the queue and would be reported again at once.
   */
  #pause(): void {
    this.#watch.stop()
    this.#timer = setTimeout(() => this.#watch.start(), acceptAgainMs).unref()
  }
}

function openSocket(libc: Libc): number {
  const fd = libc.socket(unixFamily, sequencedPackets | nonBlockingCloexec, 0)
  if (fd < 0) throw new SystemCallError('open a unix socket', fd)
  return fd
}

function encodePath(libc: Libc, path: string): NativeMemory {
  const length = Buffer.byteLength(path)
  if (length > maxPath) throw new RangeError(`unix socket ${path}: longer than ${maxPath} bytes`)
  const memory = allocateNative(libc, pathOffset + length + 1)
  memory.view.setUint16(0, unixFamily, true)
  memory.bytes.write(path, pathOffset)
  return memory
}
