import { interest } from '../../../../kernel/sockets/epoll.js'
import { errno, errnoName } from '../../../../kernel/sockets/errno.js'
import type { SocketAddress } from '../../../../kernel/sockets/socket-address.js'
import { listenBacklog, type ListenerSpec, type Target } from '../data-path.js'
import { notKept } from '../source-rule.js'
import {
  descriptorsPerConnection,
  localShortages,
  shortageAdvice,
  shortagePauseMs,
} from '../descriptors.js'
import { TcpListenerBase } from '../tcp-listener-base.js'
import type { SpliceContext } from './context.js'
import type { Watcher } from './event-loop.js'
import { TcpConnection } from './tcp-connection.js'

export class TcpListener extends TcpListenerBase<TcpConnection> implements Watcher {
  readonly #context: SpliceContext
  #fd = -1
  #pause: NodeJS.Timeout | undefined

  constructor(spec: ListenerSpec, context: SpliceContext) {
    super(spec, context.deps)
    this.#context = context
  }

  get descriptor(): number {
    return this.#fd
  }

  listen(): number {
    const { sockets, loop } = this.#context
    const { address: ip, port, descriptor } = this.spec
    this.#fd = descriptor ?? sockets.listen({ ip, port, kind: 'stream', backlog: listenBacklog })
    // Accepted sockets inherit the option, which saves a call for each.
    sockets.noDelay(this.#fd)
    loop.add(this.#fd, interest.readable, this)
    return sockets.localAddress(this.#fd).port
  }

  protected override stopListening(): void {
    clearTimeout(this.#pause)
    this.#context.loop.closeShared(this.#fd)
  }

  /** Does not wait for dials, so that other clients are accepted meanwhile (US42). */
  ready(): void {
    const { sockets, deps } = this.#context
    for (let count = 0; count < acceptsPerRound && !this.isStopped; count++) {
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
    if (peer && this.keeps(peer, target, () => this.#asked(client, peer))) {
      const fd = sockets.connected('stream', to, peer)
      if (fd >= 0 || fd === -errno.ECONNREFUSED) return fd
      this.#context.deps.warn(notKept(this.service, errnoName(fd)))
    }
    return sockets.connected('stream', to)
  }

  headerOf(client: number, peer: SocketAddress | undefined): Uint8Array | undefined {
    const own = () => this.#context.sockets.localAddress(client)
    return peer && this.header(peer, own, () => this.#asked(client, peer))
  }

  #asked(client: number, { ip }: SocketAddress): SocketAddress | undefined {
    return this.#context.sockets.originalDestination(client, ip.includes(':'))
  }

  #admit(client: number): void {
    const { sockets, deps } = this.#context
    const { proxyHeader, source } = this.choice
    const isPeerWanted = this.balancer.usesClient || deps.accessLog || proxyHeader || source
    const peer = isPeerWanted ? sockets.peer() : undefined
    const connection = new TcpConnection(this.#context, this, client, peer)
    this.began(connection)
    connection.dial()
  }

  /** Closes idle pipes when that makes room for the connection. */
  #takeDescriptors(): boolean {
    const { pool } = this.#context.flowTools
    return this.tryTakeDescriptors() || (pool.shed() && this.tryTakeDescriptors())
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
