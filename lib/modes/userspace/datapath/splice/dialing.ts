import { errno, errnoName } from '../../../../kernel/sockets/errno.js'
import { interest } from '../../../../kernel/sockets/epoll.js'
import type { SocketAddress } from '../../../../kernel/sockets/socket-address.js'
import type { Target } from '../data-path.js'
import {
  localShortages,
  outOfPorts,
  portAdvice,
  portPausesMs,
  shortagePauseMs,
} from '../descriptors.js'
import type { Listener } from '../listener.js'
import type { EndpointTraffic } from '../traffic.js'
import type { WaitingClient } from '../waiting-clients.js'
import type { SpliceContext, TimedConnection } from './context.js'
import { SocketEnd, type EndOwner } from './socket-end.js'

/** The listener that a connection came through. */
interface ConnectionOwner extends Pick<Listener, 'service' | 'choice' | 'balancer' | 'traffic'> {
  /** Begins to connect to an endpoint for the client. The new socket, or the negative error. */
  connect(client: number, peer: SocketAddress | undefined, target: Target): number
  /** The PROXY header that the endpoint gets before the client's first byte, if any. */
  headerOf(client: number, peer: SocketAddress | undefined): Uint8Array | undefined
  /** Called once, when both sockets are closed. */
  ended(connection: Dialing): void
}

const nothingTried: readonly Target[] = []

/**
 * The first part of a connection: tries one endpoint after the other until one has answered. A base
 * class, because an object of its own would be one more allocation for every connection.
 */
export abstract class Dialing implements EndOwner, TimedConnection, WaitingClient {
  protected readonly context: SpliceContext
  protected readonly owner: ConnectionOwner
  protected readonly client: SocketEnd
  /** The client's address; undefined when nothing needs it. */
  readonly peer: SocketAddress | undefined
  readonly startedAt: number
  protected backend: SocketEnd | undefined
  target: Target | undefined
  attempts = 0
  end = 'ok'
  tried = nothingTried
  patientUntil: number | undefined
  #dialedAt = 0
  #pause: NodeJS.Timeout | undefined

  /** `client` is the accepted socket. */
  constructor(
    context: SpliceContext,
    owner: ConnectionOwner,
    client: number,
    peer: SocketAddress | undefined,
  ) {
    this.context = context
    this.owner = owner
    this.peer = peer
    this.client = new SocketEnd(client, context.loop, this)
    // The accepted socket inherits the options of the listener's socket.
    this.client.isWithoutDelay = true
    this.startedAt = context.deps.now()
  }

  abstract endReady(end: SocketEnd, events: number): void
  abstract keepAliveDue(): void
  /** An endpoint has answered. */
  protected abstract connected(backend: SocketEnd, traffic: EndpointTraffic, target: Target): void
  protected abstract close(withReset: boolean): void

  /** Takes one endpoint after the other until a dial begins (US40). */
  dial(): void {
    const { balancer, traffic } = this.owner
    while (this.attempts < this.context.dialing.length) {
      if (balancer.waitForRoom(this)) return
      const target = balancer.pick(this.peer?.ip ?? '', this.tried)
      if (!target) break
      this.target = target
      this.attempts++
      this.#dialedAt = this.context.deps.now()
      const result = this.#connect(target)
      if (result >= 0) return
      this.end = errnoName(result)
      if (localShortages.has(this.end)) {
        this.#leave(target)
        this.#waitForDescriptors()
        return
      }
      if (this.end !== outOfPorts) this.#dialFailed(target)
      else if (this.#waitForPort(target)) return
    }
    if (this.attempts === 0) this.end = 'no endpoint'
    traffic.refused++
    this.close(true)
  }

  goOn(): void {
    this.dial()
  }

  dialTimedOut(): void {
    this.#dialAgain(-errno.ETIMEDOUT)
  }

  /** Handles an event of the socket to the endpoint while it is dialed. */
  protected dialReady(end: SocketEnd, events: number): void {
    if ((events & (interest.error | interest.hangup)) !== 0) {
      const error = this.context.sockets.takeError(end.fd)
      this.#dialAgain(error === 0 ? -errno.ECONNREFUSED : error)
    } else if (end.mayWrite) this.#answered(end)
  }

  protected stopDialing(): void {
    clearTimeout(this.#pause)
    this.owner.balancer.stopWaiting(this)
    this.context.dialing[this.attempts - 1]?.delete(this)
  }

  /** Tries the dial again later, when there may be a descriptor for it. */
  #waitForDescriptors(): void {
    const { deps } = this.context
    deps.descriptors.wasShort()
    deps.warn(`dial an endpoint of ${this.owner.service}: ${this.end}; trying again`)
    this.attempts--
    this.#pause = setTimeout(() => this.dial(), shortagePauseMs)
  }

  /** The endpoint is not to blame. False if the next try is now. */
  #waitForPort(target: Target): boolean {
    this.context.deps.warn(portAdvice(this.owner.service))
    this.#leave(target)
    this.tried = [...this.tried, target]
    const pauseMs = portPausesMs[this.attempts - 1] ?? 0
    if (pauseMs > 0) this.#pause = setTimeout(() => this.dial(), pauseMs)
    return pauseMs > 0
  }

  /** 0 when the dial has begun, or the negative error. */
  #connect(target: Target): number {
    const { loop, dialing } = this.context
    const fd = this.owner.connect(this.client.fd, this.peer, target)
    if (fd < 0) return fd
    // Nagle's algorithm does not delay the first message, so noDelay is set after it.
    const end = new SocketEnd(fd, loop, this)
    end.awaitWritable()
    const watched = end.watch()
    if (watched < 0) {
      loop.close(fd)
      return watched
    }
    this.backend = end
    dialing[this.attempts - 1]?.add(this)
    return 0
  }

  #dialAgain(error: number): void {
    const { target } = this
    this.end = errnoName(error)
    this.context.dialing[this.attempts - 1]?.delete(this)
    this.backend?.close()
    this.backend = undefined
    if (target) this.#dialFailed(target)
    this.dial()
  }

  #dialFailed(target: Target): void {
    this.owner.balancer.dialFailed(target)
    this.#leave(target)
    this.owner.traffic.of(target.key).dialErrors++
    this.tried = [...this.tried, target]
  }

  /** The endpoint did not get this connection. */
  #leave(target: Target): void {
    this.owner.balancer.ended(target)
    this.target = undefined
  }

  #answered(backend: SocketEnd): void {
    const { target } = this
    if (!target) return
    this.context.dialing[this.attempts - 1]?.delete(this)
    this.owner.balancer.dialSucceeded(target)
    const traffic = this.owner.traffic.of(target.key)
    traffic.dialed(this.context.deps.now() - this.#dialedAt)
    this.end = 'ok'
    this.tried = nothingTried
    this.connected(backend, traffic, target)
  }
}
