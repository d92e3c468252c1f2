import { isLittleEndian, protocols } from './netlink/protocol.js'
import { kernelErrorOf, failureOf } from './netlink/failure.js'
import { headerBytes } from './netlink/protocol.js'
import { FlowMessage } from './flow-message.js'
import { errno } from './sockets/errno.js'
import { allocateNative, type NativeMemory } from './sockets/native-memory.js'
import { loadLibc, type Libc, type Watch } from './sockets/libc.js'

/** Multicast groups of nfnetlink, from linux/netfilter/nfnetlink.h. */
const groups = { opened: 1, ended: 3 } as const
const endedMessage = 2

const socketOptions = { level: 1, receiveBufferForce: 33, attachFilter: 26 } as const
const netlinkOptions = { level: 270, addMembership: 1 } as const
const family = 16
const rawCloseOnExec = 3 | 0x80000
const doNotWait = 0x40

/** One call receives so many messages; the largest one about a flow has less than 400 bytes. */
const batch = 64
const messageBytes = 1024
const header = { bytes: 64, vector: 16, vectorCount: 24, length: 56 } as const
const vectorBytes = 16

export interface FlowEventsOptions {
  readonly receiveBufferBytes: number
  /** The kernel passes over flows whose destination nobody has changed. */
  readonly onlyTranslated: boolean
}

export interface FlowReader {
  opened(flow: FlowMessage): void
  ended(flow: FlowMessage): void
}

/** Connections that begin and end in this network namespace, as the kernel tells of them. */
export class FlowEvents {
  readonly #libc: Libc
  readonly #fd: number
  readonly #memory: NativeMemory
  readonly #flow = new FlowMessage()
  /** Kept here, because it ends with its last reference. */
  #watch: Watch | undefined
  #isClosed = false

  private constructor(libc: Libc, fd: number) {
    this.#libc = libc
    this.#fd = fd
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

  /** Hears of every connection from then on. Throws a KernelError where the kernel refuses. */
  static async open(options: FlowEventsOptions): Promise<FlowEvents> {
    const libc = await loadLibc()
    const check = (result: number, action: string) => {
      if (result < 0) throw kernelErrorOf(failureOf(-result), action)
      return result
    }
    const action = 'listen to tracked connections'
    const fd = check(libc.socket(family, rawCloseOnExec, protocols.netfilter), action)
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
      if (options.onlyTranslated) attachFilter(libc, fd)
      for (const group of Object.values(groups)) {
        check(set(netlinkOptions.level, netlinkOptions.addMembership, group), action)
      }
    } catch (error) {
      libc.close(fd)
      throw error
    }
    return new FlowEvents(libc, fd)
  }

  /** Tells of everything that has come; `isWhole`: nothing was lost before it. */
  read(reader: FlowReader): { readonly isWhole: boolean } {
    let isWhole = true
    while (!this.#isClosed) {
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
      for (let index = 0; index < count; index++) this.#tell(index, reader)
      if (count < batch) break
    }
    return { isWhole }
  }

  /** Calls back when something has come. It is told once; `read` and then ask again. */
  whenReadable(callback: () => void): () => void {
    const watch = this.#libc.watch(this.#fd, () => {
      watch.stop()
      callback()
    })
    this.#watch = watch
    return () => {
      if (!this.#isClosed) watch.start()
    }
  }

  close(): void {
    this.#watch?.close()
    if (!this.#isClosed) this.#libc.close(this.#fd)
    this.#isClosed = true
  }

  #tell(index: number, reader: FlowReader): void {
    const { bytes, view } = this.#memory
    const at = index * messageBytes
    const length = view.getUint32(headersAt + index * header.bytes + header.length, isLittleEndian)
    if (length < headerBytes || length > messageBytes) return
    if (!this.#flow.read(bytes, at + headerBytes, at + length)) return
    const type = view.getUint16(at + 4, isLittleEndian) & 0xff
    if (type === endedMessage) reader.ended(this.#flow)
    else reader.opened(this.#flow)
  }
}

const headersAt = batch * messageBytes

/**
 * A classic BPF program that finds the status in the message (SKF_AD_NLATTR) and takes only flows
 * with IPS_DST_NAT. What is not to a Service then costs no system call and no copy.
 */
const filter: readonly (readonly [code: number, ifTrue: number, ifFalse: number, k: number])[] = [
  [0x00, 0, 0, 20], // A = where attributes start
  [0x01, 0, 0, 3], // X = CTA_STATUS
  [0x20, 0, 0, 0xfffff000 + 12], // A = where that attribute is
  [0x15, 4, 0, 0], // none: drop
  [0x07, 0, 0, 0], // X = A
  [0x40, 0, 0, 4], // A = its value
  [0x45, 0, 1, 0x20], // IPS_DST_NAT?
  [0x06, 0, 0, 0xffffffff], // take
  [0x06, 0, 0, 0], // drop
]

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
