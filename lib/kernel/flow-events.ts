import { KernelError } from '../errors.js'
import { isLittleEndian, protocols, headerBytes } from './netlink/protocol.js'
import { kernelErrorOf, failureOf } from './netlink/failure.js'
import { BpfRing } from './bpf/ring.js'
import { loadProgram } from './bpf/program.js'
import { openSystemCalls } from './bpf/system-calls.js'
import { flowStatus } from './conntrack-tuple.js'
import { FlowMessage } from './flow-message.js'
import { readU32 } from './netlink/message-reader.js'
import { flowProgram } from './flow-program.js'
import { errno } from './sockets/errno.js'
import {
  allocateNative,
  loadLibc,
  type NativeMemory,
  type Libc,
  type Watch,
} from './sockets/libc.js'

/** Multicast groups of nfnetlink, from linux/netfilter/nfnetlink.h. */
const groups = { opened: 1, ended: 3 } as const
const endedMessage = 2

const socketOptions = {
  level: 1,
  receiveBufferForce: 33,
  attachFilter: 26,
  attachProgram: 50,
} as const
const netlinkOptions = { level: 270, addMembership: 1 } as const
const family = 16
const rawCloseOnExec = 3 | 0x80000
const doNotWait = 0x40

/**
 * One call receives this many messages; the largest message about a flow has less than 400 bytes.
 */
const batch = 64
const messageBytes = 1024
const header = { bytes: 64, vector: 16, vectorCount: 24, length: 56 } as const
const vectorBytes = 16

interface FlowEventsOptions {
  readonly receiveBufferBytes: number
  /** A power of 2, and whole pages. */
  readonly ringBytes: number
  /** Makes the kernel skip flows whose destination is not translated. */
  readonly onlyTranslated: boolean
}

export interface FlowReader {
  opened(flow: FlowMessage): void
  ended(flow: FlowMessage): void
}

/** The kernel's messages about connections that begin and end in this network namespace. */
export class FlowEvents {
  readonly #libc: Libc
  readonly #fd: number
  readonly #memory: NativeMemory
  readonly #flow = new FlowMessage()
  /** A message comes through the socket if there is no ring or the ring has no room for it. */
  readonly #ring: BpfRing | undefined
  /** Referenced here, because a watch ends with its last reference. */
  #watches: readonly Watch[] = []
  #isClosed = false

  private constructor(libc: Libc, fd: number, ring: BpfRing | undefined) {
    this.#libc = libc
    this.#fd = fd
    this.#ring = ring
    this.#memory = allocateNative(libc, batch * (messageBytes + header.bytes + vectorBytes))
    const { view, address } = this.#memory
    for (let index = 0; index < batch; index++) {
      const vector = headersAt + batch * header.bytes + index * vectorBytes
      view.setBigUint64(vector, BigInt(address + index * messageBytes), isLittleEndian)
      view.setBigUint64(vector + 8, BigInt(messageBytes), isLittleEndian)
      const at = headersAt + index * header.bytes
      view.setBigUint64(at + header.vector, BigInt(address + vector), isLittleEndian)
      view.setBigUint64(at + header.vectorCount, 1n, isLittleEndian)
    }
  }

  /**
   * Gets messages about connections from then on. Throws a KernelError where the kernel refuses.
   */
  static async open(options: FlowEventsOptions): Promise<FlowEvents> {
    const libc = await loadLibc()
    const check = (result: number, action: string) => {
      if (result < 0) throw kernelErrorOf(failureOf(-result), action)
      return result
    }
    const action = 'listen to tracked connections'
    const fd = check(libc.socket(family, rawCloseOnExec, protocols.netfilter), action)
    let ring: BpfRing | undefined
    try {
      const set = (level: number, name: number, value: number) => {
        const bytes = allocateNative(libc, 4)
        bytes.view.setInt32(0, value, isLittleEndian)
        return libc.setsockopt(fd, level, name, bytes.address, 4)
      }
      const address = allocateNative(libc, 12)
      address.view.setUint16(0, family, isLittleEndian)
      check(libc.bind(fd, address.address, 12), action)
      set(socketOptions.level, socketOptions.receiveBufferForce, options.receiveBufferBytes)
      ring = attachRing(libc, fd, options)
      if (!ring && options.onlyTranslated) attachFilter(libc, fd)
      for (const group of Object.values(groups)) {
        check(set(netlinkOptions.level, netlinkOptions.addMembership, group), action)
      }
    } catch (error) {
      libc.close(fd)
      ring?.close()
      throw error
    }
    return new FlowEvents(libc, fd, ring)
  }

  /** Whether messages come without a system call for each. This needs CAP_BPF and Linux 5.8. */
  get hasRing(): boolean {
    return this.#ring !== undefined
  }

  /**
   * Passes all waiting messages to the reader. Returns their number, and `isWhole`: whether none
   * was lost before them.
   */
  read(reader: FlowReader): { readonly count: number; readonly isWhole: boolean } {
    if (this.#isClosed) return { count: 0, isWhole: true }
    const fromRing = this.#ring?.read((bytes, start, end) => {
      // A record may be longer than its message; old bytes follow the message then.
      const length = readU32(bytes, start)
      this.#tell(bytes, start, Math.min(end, start + length), reader)
    })
    const fromSocket = this.#readSocket(reader)
    return { ...fromSocket, count: fromSocket.count + (fromRing ?? 0) }
  }

  #readSocket(reader: FlowReader): { readonly count: number; readonly isWhole: boolean } {
    let [isWhole, total] = [true, 0]
    for (;;) {
      const count = this.#libc.recvmmsg(
        this.#fd,
        this.#memory.address + headersAt,
        batch,
        doNotWait,
        0,
      )
      if (count < 0) {
        if (-count === errno.ENOBUFS) isWhole = false
        else if (-count !== errno.EINTR) break
        continue
      }
      for (let index = 0; index < count; index++) this.#tellReceived(index, reader)
      total += count
      if (count < batch) break
    }
    return { count: total, isWhole }
  }

  /** Calls back when something has come. It is told once; `read` and then ask again. */
  whenReadable(callback: () => void): () => void {
    const called = () => {
      for (const watch of this.#watches) watch.stop()
      callback()
    }
    const watched = this.#ring ? [this.#fd, this.#ring.map.fd] : [this.#fd]
    this.#watches = watched.map((fd) => this.#libc.watch(fd, called))
    return () => {
      if (!this.#isClosed) for (const watch of this.#watches) watch.start()
    }
  }

  close(): void {
    for (const watch of this.#watches) watch.close()
    if (!this.#isClosed) {
      this.#libc.close(this.#fd)
      this.#ring?.close()
    }
    this.#isClosed = true
  }

  #tellReceived(index: number, reader: FlowReader): void {
    const { bytes, view } = this.#memory
    const at = index * messageBytes
    const length = view.getUint32(headersAt + index * header.bytes + header.length, isLittleEndian)
    if (length <= messageBytes) this.#tell(bytes, at, at + length, reader)
  }

  #tell(bytes: Buffer, start: number, end: number, reader: FlowReader): void {
    if (end - start < headerBytes || !this.#flow.read(bytes, start + headerBytes, end)) return
    const type = bytes[start + (isLittleEndian ? 4 : 5)]
    if (type === endedMessage) reader.ended(this.#flow)
    else reader.opened(this.#flow)
  }
}

const headersAt = batch * messageBytes

/**
 * A classic BPF program that finds the status in the message (SKF_AD_NLATTR) and takes only flows
 * with IPS_DST_NAT. Other flows then cost no system call and no copy.
 */
const filter: readonly (readonly [code: number, ifTrue: number, ifFalse: number, k: number])[] = [
  [0x00, 0, 0, 20], // A = where attributes start
  [0x01, 0, 0, flowStatus.attribute], // X = CTA_STATUS
  [0x20, 0, 0, 0xfffff000 + 12], // A = where that attribute is
  [0x15, 4, 0, 0], // none: drop
  [0x07, 0, 0, 0], // X = A
  [0x40, 0, 0, 4], // A = its value
  [0x45, 0, 1, flowStatus.isTranslated], // IPS_DST_NAT?
  [0x06, 0, 0, 0xffffffff], // take
  [0x06, 0, 0, 0], // drop
]

/** Undefined where the kernel refuses a ring. The socket alone does the same at a higher cost. */
function attachRing(libc: Libc, fd: number, options: FlowEventsOptions): BpfRing | undefined {
  let ring: BpfRing | undefined
  try {
    const calls = openSystemCalls()
    ring = new BpfRing(calls, 'flows', options.ringBytes)
    const code = flowProgram(ring.map, options.onlyTranslated)
    const program = loadProgram(calls, { name: 'flows', hook: 'socket_filter', code })
    const value = allocateNative(libc, 4)
    value.view.setInt32(0, program, isLittleEndian)
    const { level, attachProgram } = socketOptions
    const result = libc.setsockopt(fd, level, attachProgram, value.address, 4)
    // The socket holds the program from now on.
    libc.close(program)
    if (result < 0) throw kernelErrorOf(failureOf(-result), 'attach an eBPF program to a socket')
    return ring
  } catch (error) {
    ring?.close()
    if (error instanceof KernelError) return undefined
    throw error
  }
}

function attachFilter(libc: Libc, fd: number): void {
  const code = allocateNative(libc, filter.length * 8)
  for (const [index, [op, ifTrue, ifFalse, k]] of filter.entries()) {
    code.view.setUint16(index * 8, op, isLittleEndian)
    code.view.setUint8(index * 8 + 2, ifTrue)
    code.view.setUint8(index * 8 + 3, ifFalse)
    code.view.setUint32(index * 8 + 4, k, isLittleEndian)
  }
  const program = allocateNative(libc, 16)
  program.view.setUint16(0, filter.length, isLittleEndian)
  program.view.setBigUint64(8, BigInt(code.address), isLittleEndian)
  const { level, attachFilter: name } = socketOptions
  const result = libc.setsockopt(fd, level, name, program.address, 16)
  if (result < 0) {
    throw kernelErrorOf(failureOf(-result), 'filter tracked connections')
  }
}
