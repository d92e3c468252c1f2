import { existsSync, rmdirSync, rmSync } from 'node:fs'
import { messageOf } from '../../../errors.js'
import { loadLibc, type Libc } from '../../../kernel/sockets/libc.js'
import { makeOwnFolder } from '../../../kernel/own-folder.js'
import { PacketServer, PacketSocket } from '../../../kernel/sockets/packet-socket.js'
import type { Log } from '../../mode.js'
import type { GivenListener } from '../listeners/listeners.js'
import { isServed, read, receive, say, sendListeners, takeoverPath, version } from './protocol.js'
import { claimSuccession, successionPath } from './succession.js'

/**
 * Calls `hand` with copies of all sockets while the mode does nothing else. When `hand` resolves to
 * false the mode goes on with the copies, otherwise the mode ends.
 */
export type HandOver = (
  copy: (descriptor: number) => number,
  hand: (given: readonly GivenListener[]) => Promise<boolean>,
) => Promise<void>

const copyCloseOnExec = 1030

const waits =
  'the process that takes over is still in its first sync, and new connections wait for it; if it is stopped or hangs, end it: this one then goes on'

/** The old process in a take-over. It waits until another process asks for its listeners. */
export class Giver {
  readonly #libc: Libc
  readonly #path: string
  readonly #server: PacketServer
  readonly #handOver: HandOver
  readonly #log: Log
  readonly #sockets = new Set<PacketSocket>()
  #isGone = false

  private constructor(libc: Libc, path: string, handOver: HandOver, log: Log) {
    this.#libc = libc
    this.#path = path
    this.#handOver = handOver
    this.#log = log
    this.#server = new PacketServer(libc, path, (socket) => {
      this.#sockets.add(socket)
      void this.#serve(socket).finally(() => this.#sockets.delete(socket))
    })
  }

  /** Undefined where no process can ask this one; the log says why. */
  static async open(folder: string, handOver: HandOver, log: Log): Promise<Giver | undefined> {
    try {
      const libc = await loadLibc()
      makeOwnFolder(folder)
      const path = takeoverPath(folder)
      if (isServed(libc, path)) throw new Error(`another process waits at ${path}`)
      rmSync(path, { force: true })
      return new Giver(libc, path, handOver, log)
    } catch (error) {
      log.info({ reason: messageOf(error) }, 'a later process cannot take these listeners over')
      return undefined
    }
  }

  close(): void {
    this.#leave()
    for (const socket of this.#sockets) socket.close()
  }

  #leave(): void {
    if (this.#isGone) return
    this.#isGone = true
    this.#server.close()
    rmSync(this.#path, { force: true })
  }

  async #serve(socket: PacketSocket): Promise<void> {
    try {
      const packet = await socket.receive()
      if (!packet) return
      const message = read(packet)
      if (message.want !== 'listeners' || message.version !== version) {
        await say(socket, { refused: `this process speaks version ${version} of the take-over` })
        return
      }
      this.#log.info({}, 'another process takes the listeners over')
      const copy = (descriptor: number) => this.#libc.fcntl(descriptor, copyCloseOnExec, 0)
      await this.#handOver(copy, (given) => this.#hand(socket, given))
    } catch (error) {
      this.#log.warn({ reason: messageOf(error) }, 'hand listeners over')
    } finally {
      socket.close()
    }
  }

  /** Resolves to whether the new process works. No time limit: only one process may serve. */
  async #hand(socket: PacketSocket, given: readonly GivenListener[]): Promise<boolean> {
    let isDone = false
    try {
      await sendListeners(socket, given)
      const answer = await receive(socket, this.#log, waits)
      isDone = answer !== undefined && read(answer).done === true
    } catch (error) {
      this.#log.warn({ reason: messageOf(error) }, 'hand listeners over')
    }
    if (!isDone) return false
    for (const { descriptor } of given) this.#libc.close(descriptor)
    // The new process waits at the same path for its own successor.
    this.#leave()
    await say(socket, { bye: true }).catch(() => undefined)
    return true
  }
}

/**
 * Removes what a killed process left for this network namespace, then the folder, unless a process
 * waits or starts there or the folder has other files.
 */
export async function removeTakeoverFolder(folder: string): Promise<void> {
  if (folder === '') return
  try {
    const path = takeoverPath(folder)
    if (existsSync(path) && !isServed(await loadLibc(), path)) rmSync(path)
    if (existsSync(successionPath(folder))) claimSuccession(await loadLibc(), folder)()
    rmdirSync(folder)
  } catch {
    // Missing, in use, of another owner, or a mount of a container: then it is not ours to remove.
  }
}
