import { Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterReading } from '../../../../async.js'
import { errnoName } from '../../../../kernel/sockets/errno.js'
import type { SocketAddress } from '../../../../kernel/sockets/socket-address.js'
import type { Sockets } from '../../../../kernel/sockets/sockets.js'
import type { DataPathDeps, Target } from '../data-path.js'
import { localShortages, shortagePauseMs } from '../descriptors.js'
import type { Listener } from '../listener.js'
import { notKept } from '../source-rule.js'
import { descriptorOf, withoutScope } from './node-sockets.js'

/** Connects to endpoints for the clients of one listener, and tells the endpoints who asks. */
export class Dialer {
  readonly #owner: Listener
  readonly #deps: DataPathDeps
  readonly #sockets: Sockets | undefined

  constructor(owner: Listener, deps: DataPathDeps, sockets: Sockets | undefined) {
    this.#owner = owner
    this.#deps = deps
    this.#sockets = sockets
  }

  /** Like {@link dialTcp}, but waits while there is no descriptor for the endpoint's socket. */
  async dial(client: Socket, target: Target, timeoutMs: number): Promise<Socket | string> {
    const { descriptors, warn } = this.#deps
    for (;;) {
      const outcome = await this.#dialOnce(client, target, timeoutMs)
      const isShort = typeof outcome === 'string' && localShortages.has(outcome)
      if (!isShort || client.destroyed) return outcome
      descriptors.wasShort()
      warn(`dial an endpoint of ${this.#owner.service}: ${outcome}; trying again`)
      await sleep(shortagePauseMs)
    }
  }

  /** The PROXY header for the endpoint, if it gets one. */
  header(client: Socket): Uint8Array | undefined {
    const { remoteAddress = '', remotePort = 0, localAddress = '', localPort = 0 } = client
    if (remoteAddress === '') return undefined
    const from = { ip: withoutScope(remoteAddress), port: remotePort }
    return this.#owner.header(
      from,
      () => ({ ip: withoutScope(localAddress), port: localPort }),
      () => this.#originalDestination(client, from.ip),
    )
  }

  async #dialOnce(client: Socket, target: Target, timeoutMs: number): Promise<Socket | string> {
    const kept = this.#keptClient(client, target)
    // The client's own port may still be in use by an earlier connection; then any port does.
    for (const port of kept ? [kept.port, 0] : []) {
      if (!this.#sockets || !kept) break
      const fd = this.#sockets.openAs({ ...kept, port }, 'stream')
      if (fd < 0) {
        this.#deps.warn(notKept(this.#owner.service, errnoName(fd)))
        break
      }
      const outcome = await dialTcp(target, timeoutMs, fd)
      if (outcome !== 'EADDRNOTAVAIL') return outcome
    }
    return dialTcp(target, timeoutMs)
  }

  /** The client, if the endpoint is to see its address. */
  #keptClient(client: Socket, target: Target): SocketAddress | undefined {
    const { remoteAddress, remotePort = 0 } = client
    if (!this.#owner.choice.source || remoteAddress === undefined) return undefined
    const from = { ip: withoutScope(remoteAddress), port: remotePort }
    const asked = () => this.#originalDestination(client, from.ip)
    return this.#owner.keeps(from, target, asked) ? from : undefined
  }

  /** The address that the client asked, where the kernel knows it. */
  #originalDestination(client: Socket, ip: string): SocketAddress | undefined {
    const fd = descriptorOf(client)
    return fd === undefined ? undefined : this.#sockets?.originalDestination(fd, ip.includes(':'))
  }
}

/**
 * The connected socket, or the code of the error: `ETIMEDOUT` when it took too long. `descriptor`
 * is an open socket to use, which is bound to an address.
 */
export function dialTcp(
  target: Target,
  timeoutMs: number,
  descriptor?: number,
): Promise<Socket | string> {
  return new Promise((resolve) => {
    const over = descriptor === undefined ? {} : { fd: descriptor }
    const socket = new Socket({ allowHalfOpen: true, ...over })
    socket.connect({ host: target.ip, port: target.port, noDelay: true })
    const settled = afterReading(timeoutMs, () => {
      socket.destroy()
      resolve('ETIMEDOUT')
    })
    const onError = (error: NodeJS.ErrnoException) => {
      settled()
      resolve(error.code ?? 'error')
    }
    socket.once('error', onError)
    socket.once('connect', () => {
      settled()
      socket.off('error', onError)
      resolve(socket)
    })
  })
}
