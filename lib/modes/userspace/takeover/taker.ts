import { KernelError, messageOf } from '../../../errors.js'
import { SystemCallError } from '../../../kernel/sockets/errno.js'
import { loadLibc, type Libc } from '../../../kernel/sockets/libc.js'
import { PacketSocket } from '../../../kernel/sockets/packet-socket.js'
import type { Log } from '../../mode.js'
import type { GivenListener } from '../listeners/listeners.js'
import { read, readListeners, say, takeoverPath, version } from './protocol.js'
import { claimSuccession, type Succession } from './succession.js'

/**
 * A process that starts. In a take-over it asks for the listeners of the old one. In an ordinary
 * start it only tells others that it is not ready to be asked.
 */
export class Taker {
  readonly #folder: string
  readonly #log: Log
  #libc: Libc | undefined
  #succession: Succession | undefined
  #socket: PacketSocket | undefined
  #mayAsk: boolean

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
      taker.#succession = claimSuccession(taker.#libc, folder)
    } catch (error) {
      if (!takesOver) return taker
      if (error instanceof KernelError && error.kind === 'busy') throw error
      const fields = { folder, reason: messageOf(error) }
      log.warn(fields, 'take over listeners: nothing keeps others from doing so at the same time')
    }
    return taker
  }

  /**
   * The listeners of the process that runs now. It stops accepting and changes nothing until
   * {@link Taker.done}. There are none in an ordinary start, without such a process, and at a
   * second call.
   */
  async take(): Promise<readonly GivenListener[]> {
    if (!this.#mayAsk) return []
    this.#mayAsk = false
    const path = takeoverPath(this.#folder)
    try {
      this.#libc ??= await loadLibc()
      this.#socket = PacketSocket.connect(this.#libc, path)
    } catch (error) {
      const isNobody =
        error instanceof SystemCallError && ['ENOENT', 'ECONNREFUSED'].includes(error.code)
      const fields = { path, reason: messageOf(error) }
      if (isNobody) this.#log.info(fields, 'no process to take listeners over from')
      else this.#log.warn(fields, 'take over listeners: starts without them')
      return []
    }
    const given = await this.#receive(this.#socket)
    this.#log.info({ path, listeners: given.length }, 'took listeners over')
    return given
  }

  /** Tells the old process that everything works here. Resolves when it has freed its path. */
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
   * Lets another process take over from now on. Before {@link Taker.done} it means giving up, so
   * that the old process takes its listeners back.
   */
  close(): void {
    this.#socket?.close()
    this.#socket = undefined
    this.#succession?.release()
    this.#succession = undefined
  }

  async #receive(socket: PacketSocket): Promise<readonly GivenListener[]> {
    const given: GivenListener[] = []
    try {
      await say(socket, { version, want: 'listeners' })
      for (;;) {
        const packet = await socket.receive()
        if (!packet) {
          // What has arrived is still ours: no other process listens there any more.
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
