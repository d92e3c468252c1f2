import { errno } from '../../../../kernel/sockets/errno.js'
import type { NativeMemory } from '../../../../kernel/sockets/libc.js'
import type { Pipe, Pipes } from '../../../../kernel/sockets/pipe.js'
import type { Sockets } from '../../../../kernel/sockets/sockets.js'
import { pipeBytes, type PipePool } from './pipe-pool.js'
import type { SocketEnd } from './socket-end.js'

/** What the flows of one worker share. */
export interface FlowTools {
  readonly sockets: Sockets
  readonly pipes: Pipes
  readonly pool: PipePool
  /** A buffer for bytes between receiving and sending; it is empty between two calls. */
  readonly scratch: NativeMemory
}

/** The result of a pump, unless it is a negative error. */
export const flowState = {
  /** There is nothing to do until an event. */
  waiting: 0,
  /** There is more to move, but it is the turn of other connections. */
  paused: 1,
  /** The source has ended and all bytes are delivered. */
  finished: 2,
} as const

/**
 * One direction of a connection. Small messages are copied through one buffer that all flows
 * share. When whole buffers come, bytes go through a pipe instead and never leave the kernel.
 * When the sink takes no more, reading stops. Bytes that were read wait here, others in the
 * kernel.
 */
export class Flow {
  readonly #tools: FlowTools
  readonly #from: SocketEnd
  readonly #to: SocketEnd
  /** Bytes that were read, but that the sink did not take yet. */
  #rest: Buffer | undefined
  #pipe: Pipe | undefined
  #inPipe = 0
  #isBulk = false
  #hasSent = false
  isFinished = false
  /** All bytes delivered to the sink so far. */
  bytes = 0

  constructor(tools: FlowTools, from: SocketEnd, to: SocketEnd) {
    this.#tools = tools
    this.#from = from
    this.#to = to
  }

  /** Whether a pump can move anything. */
  get isReady(): boolean {
    if (this.isFinished) return false
    return this.#rest || this.#inPipe > 0 ? this.#to.mayWrite : this.#from.mayRead
  }

  /** Moves what can be moved now. Returns a {@link flowState}, or the negative error of an end. */
  pump(): number {
    const limit = this.bytes + bytesPerPump
    while (this.bytes < limit) {
      const flushed = this.#flush()
      if (flushed !== 0) return this.#settle(flushed, limit)
      if (!this.#from.mayRead) return this.#settle(-errno.EAGAIN, limit)
      // A splice never gets past urgent data.
      const moved = this.#isBulk && !this.#from.hasUrgent ? this.#splice() : this.#copy()
      if (moved === 0) {
        this.#releasePipe()
        this.isFinished = true
        return flowState.finished
      }
      if (moved < 0) return this.#settle(moved, limit)
    }
    return flowState.paused
  }

  /** Moves what the source has sent before it reset the connection, as far as the sink takes it. */
  pumpLast(): number {
    this.#from.mayRead = this.#from.isOver = true
    for (;;) {
      const state = this.pump()
      if (state !== flowState.paused) return state
    }
  }

  /** Gives its pipe back, at the end of the connection. */
  drop(): void {
    this.#rest = undefined
    if (this.#inPipe > 0 && this.#pipe) {
      this.#tools.pool.discard(this.#pipe)
      this.#pipe = undefined
    } else this.#releasePipe()
  }

  /** After EAGAIN the flow waits for an event, and gives an empty pipe back. */
  #settle(result: number, limit: number): number {
    if (result !== -errno.EAGAIN) return result
    if (this.#inPipe === 0) {
      this.#releasePipe()
      if (this.bytes - (limit - bytesPerPump) < bulkThreshold) this.#isBulk = false
    }
    return flowState.waiting
  }

  /** Delivers bytes that an earlier pump has left. 0 when none are left, or the negative error. */
  #flush(): number {
    if (this.#inPipe > 0) return this.#emptyPipe()
    const rest = this.#rest
    if (!rest) return 0
    if (!this.#to.mayWrite) return -errno.EAGAIN
    const { scratch } = this.#tools
    scratch.bytes.set(rest)
    const sent = this.#send(rest.length, false)
    if (sent < 0) return sent
    this.#rest = sent < rest.length ? rest.subarray(sent) : undefined
    if (!this.#rest) return 0
    this.#to.awaitWritable()
    return -errno.EAGAIN
  }

  /** Bytes read, 0 at the end, or the negative error. Everything read is sent or kept. */
  #copy(): number {
    const { sockets, scratch } = this.#tools
    const from = this.#from
    if (from.isDrained) return 0
    const size = scratch.bytes.length
    const count = sockets.receive(from.fd, scratch.address, size)
    if (count === -errno.EAGAIN) from.mayRead = false
    if (count <= 0) return count
    if (count < size && !from.hasUrgent && !from.isOver) {
      // The kernel had less than there was room for, so all is read, except perhaps the FIN.
      if (from.hasFinished) from.isDrained = true
      else from.mayRead = false
    }
    const sent = this.#send(count, from.isDrained)
    if (sent < 0 && sent !== -errno.EAGAIN) return sent
    const delivered = Math.max(sent, 0)
    if (delivered < count) {
      this.#rest = Buffer.from(scratch.bytes.subarray(delivered, count))
      this.#to.awaitWritable()
      return -errno.EAGAIN
    }
    if (count === size) this.#isBulk = true
    return count
  }

  /** Sends from the scratch buffer; bytes taken by the kernel, or the negative error. */
  #send(length: number, isLast: boolean): number {
    const { sockets, scratch } = this.#tools
    const to = this.#to
    if (this.#hasSent && !to.isWithoutDelay) {
      to.isWithoutDelay = true
      sockets.noDelay(to.fd)
    }
    this.#hasSent = true
    const { address } = scratch
    const sent = isLast
      ? sockets.sendLast(to.fd, address, length)
      : sockets.send(to.fd, address, length)
    if (sent > 0) this.bytes += sent
    else if (sent === -errno.EAGAIN) to.awaitWritable()
    return sent
  }

  #splice(): number {
    const { pipes, pool } = this.#tools
    const pipe = (this.#pipe ??= pool.take())
    if (!pipe) return this.#copy()
    const count = pipes.fill(pipe, this.#from.fd, pipeBytes)
    // This may be the end, or urgent data that no event has told of yet.
    if (count === 0) return this.#copy()
    if (count === -errno.EAGAIN) this.#from.mayRead = false
    if (count < 0) return count
    this.#inPipe = count
    const emptied = this.#emptyPipe()
    return emptied < 0 ? emptied : count
  }

  #emptyPipe(): number {
    const pipe = this.#pipe
    if (!pipe) return 0
    while (this.#inPipe > 0) {
      const count = this.#to.mayWrite
        ? this.#tools.pipes.empty(pipe, this.#to.fd, this.#inPipe)
        : -errno.EAGAIN
      if (count === -errno.EAGAIN) this.#to.awaitWritable()
      if (count < 0) return count
      this.#inPipe -= count
      this.bytes += count
    }
    return 0
  }

  #releasePipe(): void {
    if (!this.#pipe) return
    this.#tools.pool.giveBack(this.#pipe)
    this.#pipe = undefined
  }
}

export const scratchBytes = 1 << 16
/** After so many bytes it is the turn of other connections. */
const bytesPerPump = 1 << 20
/** A direction that moves less per wake-up copies without a pipe. */
const bulkThreshold = 1 << 15
