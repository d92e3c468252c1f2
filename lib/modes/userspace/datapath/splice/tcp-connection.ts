import { hostPort } from '../../../../state/ip.js'
import { interest } from '../../../../kernel/sockets/epoll.js'
import { errno, errnoName } from '../../../../kernel/sockets/errno.js'
import type { SocketAddress } from '../../../../kernel/sockets/socket-address.js'
import type { Balancer } from '../balancer.js'
import {
  keepAliveDelayMs,
  roomPatienceMs,
  roomPauseMs,
  type AccessEntry,
  type EndpointChoice,
  type Target,
} from '../data-path.js'
import { localShortages, shortagePauseMs } from '../descriptors.js'
import { countSilence, isSilence, limitSilence } from '../silence.js'
import type { EndpointTraffic, ListenerTraffic } from '../traffic.js'
import type { SpliceContext, TimedConnection } from './context.js'
import type { Task } from './event-loop.js'
import { Flow, flowState } from './flow.js'
import { EndpointWatch } from '../endpoint-watch.js'
import { SocketEnd, type EndOwner } from './socket-end.js'

/** The listener a connection came through. */
export interface ConnectionOwner {
  readonly service: string
  readonly balancer: Balancer
  readonly traffic: ListenerTraffic
  readonly choice: Pick<EndpointChoice, 'keepAliveMs' | 'firstByteMs'>
  /** A socket that connects to an endpoint of the client, or the negative error. */
  connect(client: number, peer: SocketAddress | undefined, target: Target): number
  /** The PROXY header that the endpoint gets before the client's first byte, if any. */
  headerOf(client: number, peer: SocketAddress | undefined): Uint8Array | undefined
  /** Called once, when both sockets are closed. */
  connectionClosed(connection: TcpConnection): void
}

const nothingTried: readonly Target[] = []

/** A client and its endpoint: dials, then moves bytes in both directions until both have ended. */
export class TcpConnection implements EndOwner, TimedConnection, Task {
  deadline = 0
  readonly #context: SpliceContext
  readonly #owner: ConnectionOwner
  readonly #client: SocketEnd
  /** Undefined when nothing needs it. */
  readonly #peer: SocketAddress | undefined
  readonly #startedAt: number
  #backend: SocketEnd | undefined
  #target: Target | undefined
  #tried = nothingTried
  #attempts = 0
  #dialedAt = 0
  #endpointTraffic: EndpointTraffic | undefined
  #watch: EndpointWatch | undefined
  #toEndpoint: Flow | undefined
  #toClient: Flow | undefined
  #hasHeader = false
  #isPaused = false
  #shortage: NodeJS.Timeout | undefined
  #waitedMs = 0
  #isOver = false
  #end = 'ok'

  constructor(options: ConnectionOptions) {
    const { context, owner, client, peer } = options
    this.#context = context
    this.#owner = owner
    this.#peer = peer
    this.#startedAt = context.deps.now()
    // The accepted socket inherits the options of the listener's socket.
    this.#client = new SocketEnd({
      fd: client,
      loop: context.loop,
      owner: this,
      isWithoutDelay: true,
    })
  }

  /** Takes one endpoint after the other until a dial begins (US40). */
  dial(): void {
    const { balancer, traffic } = this.#owner
    while (this.#attempts < this.#context.dialing.length) {
      const target = balancer.pick(this.#peer?.ip ?? '', this.#tried)
      if (!target && this.#waitForRoom()) return
      if (!target) break
      this.#target = target
      this.#attempts++
      this.#dialedAt = this.#context.deps.now()
      const result = this.#connect(target)
      if (result >= 0) return
      this.#end = errnoName(result)
      if (localShortages.has(this.#end)) {
        this.#leave(target)
        this.#waitForDescriptors()
        return
      }
      this.#dialFailed(target)
    }
    if (this.#attempts === 0) this.#end = 'no endpoint'
    traffic.refused++
    this.#close(true)
  }

  /** Whether an endpoint may have fewer connections soon; then the dial is tried again. */
  #waitForRoom(): boolean {
    if (this.#waitedMs >= roomPatienceMs || !this.#owner.balancer.isFull) return false
    this.#waitedMs += roomPauseMs
    this.#shortage = setTimeout(() => this.dial(), roomPauseMs)
    return true
  }

  /** Tries the dial again later, when there may be a descriptor for it. */
  #waitForDescriptors(): void {
    const { deps } = this.#context
    deps.descriptors.wasShort()
    deps.warn(`dial an endpoint of ${this.#owner.service}: ${this.#end}; trying again`)
    this.#attempts--
    this.#shortage = setTimeout(() => this.dial(), shortagePauseMs)
  }

  get endpoint(): string | undefined {
    return this.#target?.key
  }

  dialTimedOut(): void {
    this.#dialAgain(-errno.ETIMEDOUT)
  }

  /** A peer of an old connection may have gone without closing it. */
  cameOfAge(): void {
    this.#askAfter(keepAliveDelayMs, false)
  }

  #askAfter(silenceMs: number, isLimited: boolean): void {
    const { sockets } = this.#context
    for (const end of [this.#client, this.#backend]) {
      if (!end) continue
      sockets.keepAlive(end.fd, Math.ceil(silenceMs / 1000))
      if (isLimited) limitSilence(sockets, end.fd, silenceMs)
    }
  }

  endReady(end: SocketEnd, events: number): void {
    if (this.#isOver) return
    end.note(events)
    if (this.#toClient) this.#pump()
    else if ((events & (interest.error | interest.hangup)) !== 0) {
      const error = this.#context.sockets.takeError(end.fd)
      this.#dialAgain(error === 0 ? -errno.ECONNREFUSED : error)
    } else if (end.mayWrite) this.#connected(end)
  }

  /** Goes on after other connections had their turn. */
  run(): void {
    this.#isPaused = false
    if (!this.#isOver) this.#pump()
  }

  /** Resets both sides, so that neither takes a failure for an orderly end. */
  reset(): void {
    if (!this.#isOver) this.#close(true)
  }

  entry(now: number): AccessEntry {
    return {
      service: this.#owner.service,
      protocol: 'TCP',
      client: this.#peer ? hostPort(this.#peer.ip, this.#peer.port) : '',
      endpoint: this.#target?.key ?? '',
      attempts: this.#attempts,
      bytesToEndpoint: this.#toEndpoint?.bytes ?? 0,
      bytesToClient: this.#toClient?.bytes ?? 0,
      durationMs: Math.round(now - this.#startedAt),
      end: this.#end,
    }
  }

  /** 0 when the dial has begun, or the negative error. */
  #connect(target: Target): number {
    const { loop, dialing } = this.#context
    const fd = this.#owner.connect(this.#client.fd, this.#peer, target)
    if (fd < 0) return fd
    // Nagle's algorithm does not delay the first message, so noDelay is set after it.
    const end = new SocketEnd({ fd, loop, owner: this, isWithoutDelay: false })
    end.awaitWritable()
    const watched = end.watch()
    if (watched < 0) {
      loop.close(fd)
      return watched
    }
    this.#backend = end
    dialing[this.#attempts - 1]?.add(this)
    return 0
  }

  #dialAgain(error: number): void {
    const target = this.#target
    this.#end = errnoName(error)
    this.#context.dialing[this.#attempts - 1]?.delete(this)
    this.#backend?.close()
    this.#backend = undefined
    if (target) this.#dialFailed(target)
    this.dial()
  }

  #dialFailed(target: Target): void {
    this.#owner.balancer.dialFailed(target)
    this.#leave(target)
    this.#owner.traffic.of(target.key).dialErrors++
    this.#tried = [...this.#tried, target]
  }

  /** It does not have this connection. */
  #leave(target: Target): void {
    this.#owner.balancer.ended(target)
    this.#target = undefined
  }

  #connected(backend: SocketEnd): void {
    const target = this.#target
    if (!target) return
    const { dialing, young, deps, flowTools } = this.#context
    dialing[this.#attempts - 1]?.delete(this)
    const { keepAliveMs, firstByteMs } = this.#owner.choice
    if (keepAliveMs === undefined) young.add(this)
    else if (keepAliveMs > 0) this.#askAfter(keepAliveMs, true)
    const { balancer } = this.#owner
    balancer.dialSucceeded(target)
    this.#endpointTraffic = this.#owner.traffic.of(target.key)
    this.#endpointTraffic.dialed(deps.now() - this.#dialedAt)
    const watch = { balancer, traffic: this.#endpointTraffic, target, now: deps.now, firstByteMs }
    this.#watch = new EndpointWatch(watch)
    this.#end = 'ok'
    this.#tried = nothingTried
    this.#sendHeader(backend)
    this.#toEndpoint = new Flow(flowTools, this.#client, backend)
    this.#toClient = new Flow(flowTools, backend, this.#client)
    // The client may have sent something meanwhile, so this tries before an event comes.
    this.#client.mayRead = this.#client.mayWrite = true
    this.#pump()
    if (this.#isOver) return
    const watched = this.#client.watch()
    if (watched < 0) this.#fail(watched)
  }

  /** The endpoint's socket has just connected, so there is room. A failure shows at the next call. */
  #sendHeader(backend: SocketEnd): void {
    const header = this.#owner.headerOf(this.#client.fd, this.#peer)
    if (!header) return
    const { sockets, flowTools } = this.#context
    const { bytes, address } = flowTools.scratch
    this.#hasHeader = true
    // Otherwise the first bytes of the client wait until the endpoint has confirmed the header.
    backend.isWithoutDelay = true
    sockets.noDelay(backend.fd)
    bytes.set(header)
    sockets.send(backend.fd, address, header.length)
  }

  /** An endpoint that does not understand the header, or does not trust us, ends at once. */
  #noteRefusedHeader(): void {
    if (!this.#hasHeader || this.#toClient?.bytes !== 0 || this.#toEndpoint?.isFinished) return
    if (this.#endpointTraffic) this.#endpointTraffic.headersRefused++
    this.#hasHeader = false
  }

  #pump(): void {
    if (this.#toEndpoint) this.#move(this.#toEndpoint, this.#backend)
    if (this.#toClient && !this.#isOver) this.#move(this.#toClient, this.#client)
  }

  #move(flow: Flow, sink: SocketEnd | undefined): void {
    if (!flow.isReady) return
    const before = flow.bytes
    const state = flow.pump()
    this.#count(flow, flow.bytes - before)
    if (state < 0) this.#fail(state)
    else if (state === flowState.finished) {
      if (flow === this.#toClient) {
        this.#noteRefusedHeader()
        this.#watch?.ended('in order')
      }
      if (this.#toEndpoint?.isFinished && this.#toClient?.isFinished) this.#close(false)
      // Only this direction has ended; the other one goes on (US44).
      else if (sink) this.#context.sockets.finishSending(sink.fd)
    } else if (state === flowState.paused && !this.#isPaused) {
      this.#isPaused = true
      this.#context.loop.later(this)
    }
  }

  #count(flow: Flow, bytes: number): void {
    const traffic = this.#endpointTraffic
    if (!traffic || bytes === 0) return
    if (flow === this.#toClient) {
      traffic.bytesToClient += bytes
      this.#watch?.answered()
    } else {
      traffic.bytesToEndpoint += bytes
      this.#watch?.asked()
    }
  }

  #fail(error: number): void {
    this.#end = errnoName(error)
    const isEndpoint = this.#backend && this.#context.sockets.isGone(this.#backend.fd)
    if (this.#endpointTraffic) {
      countSilence(this.#endpointTraffic, isEndpoint ? 'endpoint' : 'client', this.#end)
    }
    if (isEndpoint) {
      this.#noteRefusedHeader()
      const isFault = !isSilence(this.#end) && this.#toEndpoint?.isFinished === false
      if (isFault) this.#watch?.ended('reset by the endpoint')
    }
    this.#close(true)
  }

  #close(withReset: boolean): void {
    this.#isOver = true
    clearTimeout(this.#shortage)
    const { sockets, dialing, young } = this.#context
    if (this.#toClient) young.delete(this)
    else dialing[this.#attempts - 1]?.delete(this)
    this.#toEndpoint?.drop()
    this.#toClient?.drop()
    if (withReset) {
      sockets.resetOnClose(this.#client.fd)
      if (this.#backend) sockets.resetOnClose(this.#backend.fd)
    }
    this.#client.close()
    this.#backend?.close()
    if (this.#target) this.#owner.balancer.ended(this.#target)
    this.#watch?.ended('otherwise')
    this.#owner.connectionClosed(this)
  }
}

export interface ConnectionOptions {
  readonly context: SpliceContext
  readonly owner: ConnectionOwner
  /** The accepted socket. */
  readonly client: number
  readonly peer: SocketAddress | undefined
}
