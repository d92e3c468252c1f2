import { setTimeout as sleep } from 'node:timers/promises'
import { KernelError, messageOf } from '../../../errors.js'
import { SystemCallError } from '../../../kernel/sockets/errno.js'
import { loadLibc, type Libc } from '../../../kernel/sockets/libc.js'
import { isQueueFull, PacketSocket } from '../../../kernel/sockets/packet-socket.js'
import type { Log } from '../../mode.js'
import type { GivenListener } from '../listeners/listeners.js'
import {
  isServed,
  read,
  readListeners,
  receive,
  say,
  takeoverPath,
  tellLongWait,
  version,
} from './protocol.js'
import { claimSuccession } from './succession.js'

const waits =
  'the process that serves now does not answer, and this one waits for its listeners; if it is stopped or hangs, continue it, or end it: this one then goes on without them'

const connectAgainMs = 50

/**
 * A process that starts. In a take-over it asks the old process for its listeners. In an ordinary
 * start it only holds the lock, which tells other processes that they cannot ask it yet.
 */
export class Taker {
  readonly #folder: string
  readonly #log: Log
  #libc: Libc | undefined
  #release: (() => void) | undefined
  #socket: PacketSocket | undefined
  #mayAsk: boolean
  #isWaiting = false
  #isClosed = false

  private constructor(folder: string, takesOver: boolean, log: Log) {
    this.#folder = folder
    this.#mayAsk = takesOver
    this.#log = log
  }

  /** Throws a KernelError `busy` for a take-over while another process starts or takes over. */
  static async open(folder: string, takesOver: boolean, log: Log): Promise<Taker> {
    const taker = new Taker(folder, takesOver, log)
    try {
      taker.#libc = await loadLibc()
      taker.#release = claimSuccession(taker.#libc, folder)
    } catch (error) {
      if (!takesOver) return taker
      if (error instanceof KernelError && error.kind === 'busy') throw error
      const fields = { folder, reason: messageOf(error) }
      log.warn(fields, 'take over listeners: no lock, so others may take over at the same time')
    }
    return taker
  }

  /**
   * Gets the listeners of the process that runs now. That process stops accepting and changes
   * nothing until {@link Taker.done}. Resolves to no listeners in an ordinary start, when no
   * process runs, and at a second call.
   */
  async take(): Promise<readonly GivenListener[]> {
    if (!this.#mayAsk) return []
    this.#mayAsk = false
    const path = takeoverPath(this.#folder)
    try {
      this.#libc ??= await loadLibc()
      this.#isWaiting = true
      this.#socket = await this.#connect(this.#libc, path)
    } catch (error) {
      this.#isWaiting = false
      if (this.#isClosed) return []
      const isNobody =
        error instanceof SystemCallError && ['ENOENT', 'ECONNREFUSED'].includes(error.code)
      const fields = { path, reason: messageOf(error) }
      if (isNobody) this.#log.info(fields, 'no process to take listeners over from')
      else this.#log.warn(fields, 'take over listeners: starts without them')
      return []
    }
    const given = await this.#receive(this.#socket)
    this.#isWaiting = false
    if (this.isAwaited) this.#log.info({ path, listeners: given.length }, 'took listeners over')
    return given
  }

  /** Whether the listeners of an old process are still to come. */
  get isWaiting(): boolean {
    return this.#mayAsk || this.#isWaiting
  }

  /** Whether an old process has given its listeners and waits for {@link Taker.done}. */
  get isAwaited(): boolean {
    return this.#socket !== undefined
  }

  /** Tells the old process that this one works. Resolves when the old one has freed its path. */
  async done(unused: readonly GivenListener[]): Promise<void> {
    for (const { descriptor } of unused) this.#libc?.close(descriptor)
    const socket = this.#socket
    if (!socket) return
    this.#socket = undefined
    try {
      await say(socket, { done: true })
      await socket.receive()
    } catch (error) {
      this.#log.warn({ reason: messageOf(error) }, 'the old process ended during the take-over')
    }
    socket.close()
  }

  /**
   * Frees the lock, so that another process can take over from now on. A call before
   * {@link Taker.done} gives up: the old process keeps its listeners, or takes them back. Answers
   * whether there is such a process.
   */
  close(): boolean {
    const isServing = () => this.#mayAsk && isServed(this.#libc, takeoverPath(this.#folder))
    const isLeft = this.isAwaited || this.#isWaiting || isServing()
    this.#mayAsk = false
    this.#isClosed = true
    this.#socket?.close()
    this.#socket = undefined
    this.#release?.()
    this.#release = undefined
    return isLeft
  }

  /** Waits while the old process accepts nobody: it lives, and only one process may serve. */
  async #connect(libc: Libc, path: string): Promise<PacketSocket> {
    const told = tellLongWait(this.#log, waits)
    try {
      for (;;) {
        try {
          return PacketSocket.connect(libc, path)
        } catch (error) {
          if (this.#isClosed || !isQueueFull(error)) throw error
        }
        await sleep(connectAgainMs)
      }
    } finally {
      clearTimeout(told)
    }
  }

  async #receive(socket: PacketSocket): Promise<readonly GivenListener[]> {
    const given: GivenListener[] = []
    try {
      await say(socket, { version, want: 'listeners' })
      for (;;) {
        const packet = await receive(socket, this.#log, waits)
        if (!packet) {
          // This process ends.
          if (!this.isAwaited) return []
          // The listeners that have arrived are used: no other process has them any more.
          this.#log.warn({}, 'the old process ended in the middle of the take-over')
          return given
        }
        const { complete, refused } = read(packet)
        given.push(...readListeners(packet))
        if (complete) return given
        if (refused === undefined) continue
        this.#log.warn({ reason: refused }, 'the old process keeps its listeners')
        return given
      }
    } catch (error) {
      this.#log.warn({ reason: messageOf(error) }, 'take over listeners: starts without them')
      return given
    }
  }
}
