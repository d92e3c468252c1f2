import { errno, errnoName } from '../../../../kernel/sockets/errno.js'
import { keepAliveDelayMs, type Target, limitSilence } from '../data-path.js'
import { type EndpointTraffic, countSilence, isSilence } from '../traffic.js'
import { Dialing } from './dialing.js'
import type { Task } from './event-loop.js'
import { Flow, flowState } from './flow.js'
import { EndpointWatch } from '../endpoint-watch.js'
import type { SocketEnd } from './socket-end.js'

/** A client and its endpoint: dials, then moves bytes in both directions until both have ended. */
export class TcpConnection extends Dialing implements Task {
  #endpointTraffic: EndpointTraffic | undefined
  #watch: EndpointWatch | undefined
  #toEndpoint: Flow | undefined
  #toClient: Flow | undefined
  #hasHeader = false
  #isPaused = false
  #isOver = false

  get bytesToEndpoint(): number {
    return this.#toEndpoint?.bytes ?? 0
  }

  get bytesToClient(): number {
    return this.#toClient?.bytes ?? 0
  }

  /** A peer of an old connection may have gone without closing it. */
  override keepAliveDue(): void {
    this.#askAfter(keepAliveDelayMs, false)
  }

  #askAfter(silenceMs: number, isLimited: boolean): void {
    const { sockets } = this.context
    for (const end of [this.client, this.backend]) {
      if (!end) continue
      sockets.keepAlive(end.fd, Math.ceil(silenceMs / 1000))
      if (isLimited) limitSilence(sockets, end.fd, silenceMs)
    }
  }

  override endReady(end: SocketEnd, events: number): void {
    if (this.#isOver) return
    end.note(events)
    if (this.#toClient) this.#pump()
    else this.dialReady(end, events)
  }

  /** Goes on after other connections had their turn. */
  run(): void {
    this.#isPaused = false
    if (!this.#isOver) this.#pump()
  }

  /** Resets both sides, so that neither takes a failure for an orderly end. */
  reset(): void {
    if (this.#isOver) return
    this.end = 'reset'
    this.close(true)
  }

  protected override connected(backend: SocketEnd, traffic: EndpointTraffic, target: Target): void {
    const { awaitingKeepAlive, deps, flowTools } = this.context
    const { keepAliveMs } = this.owner.choice
    if (keepAliveMs === undefined) awaitingKeepAlive.add(this)
    else if (keepAliveMs > 0) this.#askAfter(keepAliveMs, true)
    this.#endpointTraffic = traffic
    this.#watch = new EndpointWatch(this.owner, target, deps.now)
    this.#sendHeader(backend)
    this.#toEndpoint = new Flow(flowTools, this.client, backend)
    this.#toClient = new Flow(flowTools, backend, this.client)
    // The client may have sent something meanwhile, so this tries before an event comes.
    this.client.mayRead = this.client.mayWrite = true
    this.#pump()
    if (this.#isOver) return
    const watched = this.client.watch()
    if (watched < 0) this.#fail(watched)
  }

  /** The endpoint's socket is new and has room for the header. A failure shows at the next call. */
  #sendHeader(backend: SocketEnd): void {
    const header = this.owner.headerOf(this.client.fd, this.peer)
    if (!header) return
    const { sockets, flowTools } = this.context
    const { bytes, address } = flowTools.scratch
    this.#hasHeader = true
    // Without this the client's first bytes wait until the endpoint has confirmed the header.
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
    if (this.#toEndpoint) this.#move(this.#toEndpoint)
    if (this.#toClient && !this.#isOver) this.#move(this.#toClient)
  }

  #move(flow: Flow): void {
    if (!flow.isReady) return
    const before = flow.bytes
    const state = flow.pump()
    this.#count(flow, flow.bytes - before)
    if (state < 0) {
      this.#deliverLast(flow === this.#toClient ? this.#toEndpoint : this.#toClient, state)
      this.#fail(state)
    } else if (state === flowState.finished) this.#ended(flow)
    else if (state === flowState.paused && !this.#isPaused) {
      this.#isPaused = true
      this.context.loop.later(this)
    }
  }

  #ended(flow: Flow): void {
    if (flow === this.#toClient) {
      this.#noteRefusedHeader()
      this.#watch?.ended('in order')
    }
    const sink = flow === this.#toClient ? this.client : this.backend
    if (this.#toEndpoint?.isFinished && this.#toClient?.isFinished) this.close(false)
    // Only this direction has ended; the other one goes on (US44).
    else if (sink) this.context.sockets.finishSending(sink.fd)
  }

  /** A side may answer and reset while it is still sent to. The other side gets the answer first. */
  #deliverLast(flow: Flow | undefined, error: number): void {
    if (!flow || flow.isFinished) return
    const before = flow.bytes
    const state = flow.pumpLast()
    this.#count(flow, flow.bytes - before)
    // The reset came behind an orderly end, which the other side gets, too.
    if (state === flowState.finished && error === -errno.EPIPE) this.#ended(flow)
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
    this.end = errnoName(error)
    const isEndpoint = this.backend && this.context.sockets.isGone(this.backend.fd)
    if (this.#endpointTraffic) {
      countSilence(this.#endpointTraffic, isEndpoint ? 'endpoint' : 'client', this.end)
    }
    if (isEndpoint) {
      this.#noteRefusedHeader()
      const isFault = !isSilence(this.end) && this.#toEndpoint?.isFinished === false
      if (isFault) this.#watch?.ended('reset by the endpoint')
    }
    this.close(true)
  }

  protected override close(withReset: boolean): void {
    this.#isOver = true
    const { sockets, awaitingKeepAlive } = this.context
    if (this.#toClient) awaitingKeepAlive.delete(this)
    else this.stopDialing()
    this.#toEndpoint?.drop()
    this.#toClient?.drop()
    if (withReset) {
      sockets.resetOnClose(this.client.fd)
      if (this.backend) sockets.resetOnClose(this.backend.fd)
    }
    this.client.close()
    this.backend?.close()
    this.#watch?.ended('otherwise')
    this.owner.ended(this)
  }
}
