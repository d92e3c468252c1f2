import { interest } from '../../../../kernel/sockets/epoll.js'
import { errno, errnoName } from '../../../../kernel/sockets/errno.js'
import type { SocketAddress } from '../../../../kernel/sockets/socket-address.js'
import { Balancer } from '../balancer.js'
import {
  listenBacklog,
  type EndpointChanges,
  type EndpointChoice,
  type ListenerSpec,
  type Target,
} from '../data-path.js'
import { RemovedEndpoints } from '../removed-endpoints.js'
import { notKept } from '../source-rule.js'
import {
  descriptorsPerConnection,
  localShortages,
  shortageAdvice,
  shortagePauseMs,
} from '../descriptors.js'
import type { Listener } from '../data-path.js'
import { encodeProxyHeader } from '../proxy-header.js'
import { ListenerTraffic, type ListenerCounts } from '../traffic.js'
import type { SpliceContext } from './context.js'
import type { Watcher } from './event-loop.js'
import { TcpConnection, type ConnectionOwner } from './tcp-connection.js'

/** One listening TCP socket and the connections that came through it. */
export class TcpListener implements Listener, ConnectionOwner, Watcher {
  readonly balancer: Balancer
  readonly traffic = new ListenerTraffic()
  readonly idle: Promise<void>
  readonly #context: SpliceContext
  readonly #connections = new Set<TcpConnection>()
  readonly #removedEndpoints: RemovedEndpoints
  readonly #spec: ListenerSpec
  #choice: Omit<EndpointChoice, 'endpoints'>
  #fd = -1
  #becomeIdle: () => void = () => undefined
  #isStopped = false
  #pause: NodeJS.Timeout | undefined

  constructor(spec: ListenerSpec, context: SpliceContext) {
    this.#spec = spec
    this.#choice = spec
    this.#context = context
    this.balancer = new Balancer(context.deps, spec)
    const isUsed = (endpoint: string) => this.balancer.has(endpoint)
    this.#removedEndpoints = new RemovedEndpoints(this.#connections, isUsed, spec.servingKeys)
    this.idle = new Promise((resolve) => (this.#becomeIdle = resolve))
  }

  get service(): string {
    return this.#spec.service
  }

  get choice(): Omit<EndpointChoice, 'endpoints'> {
    return this.#choice
  }

  get descriptor(): number {
    return this.#fd
  }

  listen(): Promise<number> {
    const { sockets, loop } = this.#context
    const { address: ip, port, descriptor } = this.#spec
    // Nothing here waits, but errors have to reject the promise.
    return Promise.resolve().then(() => {
      this.#fd = descriptor ?? sockets.listen({ ip, port, kind: 'stream', backlog: listenBacklog })
      // Accepted sockets inherit the option, which saves a call for each.
      sockets.noDelay(this.#fd)
      loop.add(this.#fd, interest.readable, this)
      return sockets.localAddress(this.#fd).port
    })
  }

  update(changes: EndpointChanges): void {
    this.balancer.update(changes)
    this.#choice = changes
    this.#removedEndpoints.update(changes)
  }

  stop(): void {
    if (this.#isStopped) return
    this.#isStopped = true
    clearTimeout(this.#pause)
    this.#context.loop.closeShared(this.#fd)
    if (this.#connections.size === 0) this.#becomeIdle()
  }

  handOver(): void {
    this.stop()
  }

  cut(): void {
    for (const connection of this.#connections) connection.reset()
  }

  takeCounts(): ListenerCounts | undefined {
    return this.traffic.take(this.#spec.key, (endpoint) => this.balancer.needs(endpoint))
  }

  /** Does not wait for dials, so that other clients are accepted meanwhile (US42). */
  ready(): void {
    const { sockets, deps } = this.#context
    for (let count = 0; count < acceptsPerRound && !this.#isStopped; count++) {
      if (!this.#takeDescriptors()) {
        // Only in the first round is it certain that a client waits.
        if (count === 0) this.#backOff(shortageAdvice)
        return
      }
      const client = sockets.accept(this.#fd)
      if (client >= 0) {
        this.#admit(client)
        continue
      }
      deps.descriptors.release(descriptorsPerConnection)
      if (client === -errno.EAGAIN) return
      if (localShortages.has(errnoName(client))) {
        this.#backOff(`accept connections for ${this.service}: ${errnoName(client)}; pausing`)
        return
      }
      // Any other error is that of a connection that ended while it waited to be accepted.
    }
  }

  connect(client: number, peer: SocketAddress | undefined, target: Target): number {
    const { sockets, addressOf } = this.#context
    const to = addressOf(target)
    if (peer && this.#keeps(client, peer, target)) {
      const fd = sockets.connected('stream', to, peer)
      if (fd >= 0 || fd === -errno.ECONNREFUSED) return fd
      this.#context.deps.warn(notKept(this.service, errnoName(fd)))
    }
    return sockets.connected('stream', to)
  }

  #keeps(fd: number, client: SocketAddress, target: Target): boolean {
    const { sockets, deps } = this.#context
    const { source } = this.#choice
    if (!source || !deps.sourceKeeper) return false
    const asked = sockets.originalDestination(fd, client.ip.includes(':'))
    return deps.sourceKeeper.keeps(source, { client, asked, target })
  }

  headerOf(client: number, peer: SocketAddress | undefined): Uint8Array | undefined {
    const { proxyHeader } = this.#choice
    if (!proxyHeader || !peer) return undefined
    const { sockets } = this.#context
    const asked =
      sockets.originalDestination(client, peer.ip.includes(':')) ??
      proxyHeader.asked ??
      sockets.localAddress(client)
    return encodeProxyHeader(proxyHeader.version, 'TCP', peer, asked)
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
    const isPeerWanted =
      this.balancer.usesClient ||
      deps.accessLog !== undefined ||
      this.#choice.proxyHeader !== undefined ||
      this.#choice.source !== undefined
    const peer = isPeerWanted ? sockets.peer() : undefined
    const connection = new TcpConnection({ context: this.#context, owner: this, client, peer })
    this.#connections.add(connection)
    this.traffic.active++
    connection.dial()
  }

  /** Closes idle pipes when that makes room for the connection. */
  #takeDescriptors(): boolean {
    const { deps, flowTools } = this.#context
    const held = this.#connections.size * descriptorsPerConnection
    const tryTake = () => deps.descriptors.tryTakeFor(held, descriptorsPerConnection)
    return tryTake() || (flowTools.pool.shed() && tryTake())
  }

  /**
   * Pauses: new clients wait in the kernel until there may be descriptors again. Without a pause
   * epoll would report the listener again and again.
   */
  #backOff(why: string): void {
    const { loop, deps } = this.#context
    deps.descriptors.wasShort()
    deps.warn(why)
    loop.modify(this.#fd, 0)
    this.#pause = setTimeout(() => loop.modify(this.#fd, interest.readable), shortagePauseMs)
  }
}

const acceptsPerRound = 64
