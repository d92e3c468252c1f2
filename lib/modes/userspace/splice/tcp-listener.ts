import { interest } from '../../../kernel/sockets/epoll.js'
import { errno, errnoName } from '../../../kernel/sockets/errno.js'
import { Balancer } from '../balancer.js'
import { listenBacklog, type ListenerSpec } from '../datapath.js'
import type { Listener } from '../listener.js'

import { ListenerTraffic, type ListenerCounts } from '../traffic.js'
import type { SpliceContext } from './context.js'
import type { Watcher } from './event-loop.js'
import { TcpConnection, type ConnectionOwner } from './tcp-connection.js'

/** The client's socket and the endpoint's. */
const descriptorsPerConnection = 2

/** One listening TCP socket and the connections that came through it. */
export class TcpListener implements Listener, ConnectionOwner, Watcher {
  readonly balancer: Balancer
  readonly traffic = new ListenerTraffic()
  readonly idle: Promise<void>
  readonly #context: SpliceContext
  readonly #connections = new Set<TcpConnection>()
  #spec: ListenerSpec
  #fd = -1
  #becomeIdle: () => void = () => undefined
  #isStopped = false
  #pause: NodeJS.Timeout | undefined

  constructor(spec: ListenerSpec, context: SpliceContext) {
    this.#spec = spec
    this.#context = context
    this.balancer = new Balancer(context.deps, spec)
    this.idle = new Promise((resolve) => (this.#becomeIdle = resolve))
  }

  get service(): string {
    return this.#spec.service
  }

  listen(): Promise<number> {
    const { sockets, loop } = this.#context
    const { address: ip, port } = this.#spec
    // Synchronous, but callers of either data path expect a promise that rejects.
    return Promise.resolve().then(() => {
      this.#fd = sockets.listen({ ip, port, kind: 'stream', backlog: listenBacklog })
      // Accepted sockets inherit it, which saves a call for each.
      sockets.noDelay(this.#fd)
      loop.add(this.#fd, interest.readable, this)
      return sockets.localAddress(this.#fd).port
    })
  }

  update(spec: ListenerSpec): void {
    this.#spec = spec
    this.balancer.update(spec)
  }

  stop(): void {
    if (this.#isStopped) return
    this.#isStopped = true
    clearTimeout(this.#pause)
    this.#context.loop.close(this.#fd)
    if (this.#connections.size === 0) this.#becomeIdle()
  }

  cut(): void {
    for (const connection of this.#connections) connection.reset()
  }

  takeCounts(): ListenerCounts | undefined {
    return this.traffic.take(this.#spec.key, (endpoint) => this.balancer.has(endpoint))
  }

  /** Never waits: while one client's endpoint is being dialed, others are accepted (US42). */
  ready(): void {
    for (let count = 0; count < acceptsPerRound && !this.#isStopped; count++) {
      const client = this.#context.sockets.accept(this.#fd)
      if (client >= 0) this.#admit(client)
      else if (shortages.has(client)) {
        this.#backOff(client)
        return
      } else if (client === -errno.EAGAIN) return
      // Any other error belongs to a connection that died while it waited; the next may live.
    }
  }

  connectionClosed(connection: TcpConnection): void {
    const { descriptors, accessLog, now } = this.#context.deps
    this.#connections.delete(connection)
    this.traffic.active--
    descriptors.release(descriptorsPerConnection)
    accessLog?.(connection.entry(now()))
    if (this.#isStopped && this.#connections.size === 0) this.#becomeIdle()
  }

  #admit(client: number): void {
    const { sockets, deps } = this.#context
    if (!this.#takeDescriptors()) {
      deps.warn('no file descriptors left: refused a connection; raise the limit of open files')
      this.#refuse(client)
      return
    }
    const isPeerWanted = this.balancer.usesAffinity || deps.accessLog !== undefined
    const peer = isPeerWanted ? sockets.peer() : undefined
    const connection = new TcpConnection({ context: this.#context, owner: this, client, peer })
    this.#connections.add(connection)
    this.traffic.active++
    connection.dial()
  }

  /** A connection is worth more than idle pipes. */
  #takeDescriptors(): boolean {
    const { deps, flowTools } = this.#context
    if (deps.descriptors.tryTake(descriptorsPerConnection)) return true
    return flowTools.pool.shed() && deps.descriptors.tryTake(descriptorsPerConnection)
  }

  /**
   * Descriptors ran out although the budget had some: others in this process took them. A spare
   * one lets us turn the waiting clients away rather than leave them hanging; then the listener
   * pauses, since epoll would report it again at once, forever.
   */
  #backOff(error: number): void {
    const { sockets, loop, deps, spare } = this.#context
    deps.warn(`accept connections for ${this.service}: ${errnoName(error)}; pausing`)
    spare.lend(() => {
      const client = sockets.accept(this.#fd)
      if (client >= 0) this.#refuse(client)
      return client >= 0
    })
    loop.modify(this.#fd, 0)
    this.#pause = setTimeout(() => loop.modify(this.#fd, interest.readable), pauseMs)
  }

  #refuse(client: number): void {
    this.traffic.refused++
    this.#context.sockets.resetOnClose(client)
    this.#context.libc.close(client)
  }
}

const acceptsPerRound = 64
const pauseMs = 100
const shortages: ReadonlySet<number> = new Set(
  [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM].map((code) => -code),
)
