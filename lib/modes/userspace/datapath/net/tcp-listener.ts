import { once } from 'node:events'
import { createServer, type Server, type Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { errnoName } from '../../../../kernel/sockets/errno.js'
import type { SocketAddress } from '../../../../kernel/sockets/socket-address.js'
import type { Sockets } from '../../../../kernel/sockets/sockets.js'
import { Balancer } from '../balancer.js'
import {
  dialTimeoutsMs,
  listenBacklog,
  roomPatienceMs,
  roomPauseMs,
  type EndpointChanges,
  type EndpointChoice,
} from '../data-path.js'
import { EndpointWatch } from '../endpoint-watch.js'
import { Departures } from '../departures.js'
import { countSilence, isSilence } from '../silence.js'
import { notKept } from '../source-rule.js'
import {
  descriptorsPerConnection,
  localShortages,
  shortageAdvice,
  shortagePauseMs,
} from '../descriptors.js'
import type { DataPathDeps, ListenerSpec, Target } from '../data-path.js'
import type { Listener } from '../data-path.js'
import { descriptorOf, withoutScope } from './node-sockets.js'
import { dialTcp, TcpConnection } from './tcp-connection.js'
import type { TimeoutQueue } from '../timeout-queue.js'
import { encodeProxyHeader } from '../proxy-header.js'
import { ListenerTraffic, type ListenerCounts } from '../traffic.js'
import { AdmissionQueue } from './admission-queue.js'

/** What the listeners of one worker share. */
export interface NetTools {
  readonly young: TimeoutQueue<TcpConnection>
  /** For what Node cannot do with its sockets; undefined where koffi does not load. */
  readonly sockets: Sockets | undefined
}

/** One listening TCP socket and the connections that came through it. */
export class TcpListener implements Listener {
  readonly #spec: ListenerSpec
  readonly #deps: DataPathDeps
  readonly #young: TimeoutQueue<TcpConnection>
  readonly #sockets: Sockets | undefined
  readonly #balancer: Balancer
  readonly #server: Server
  readonly #traffic = new ListenerTraffic()
  readonly #connections = new Set<TcpConnection>()
  readonly #departures: Departures
  readonly #waiting: AdmissionQueue
  #choice: Omit<EndpointChoice, 'endpoints'>
  #isStopped = false
  readonly idle: Promise<void>
  #becomeIdle: () => void = () => undefined

  constructor(spec: ListenerSpec, deps: DataPathDeps, { young, sockets }: NetTools) {
    this.#spec = spec
    this.#choice = spec
    this.#deps = deps
    this.#young = young
    this.#sockets = sockets
    this.#balancer = new Balancer(deps, spec)
    const isUsed = (endpoint: string) => this.#balancer.has(endpoint)
    this.#departures = new Departures(this.#connections, isUsed, spec.servingKeys)
    this.idle = new Promise((resolve) => (this.#becomeIdle = resolve))
    this.#waiting = new AdmissionQueue(deps.descriptors, (client) => {
      if (!this.#takeDescriptors()) return false
      this.#admit(client)
      return true
    })
    this.#server = createServer({
      // One side may end its sending while the other goes on (US44).
      allowHalfOpen: true,
      // The kernel keeps what the client sends until an endpoint has answered.
      pauseOnConnect: true,
      noDelay: true,
    })
    this.#server.on('connection', (client) => {
      this.#accept(client)
    })
  }

  get descriptor(): number | undefined {
    return descriptorOf(this.#server)
  }

  async listen(): Promise<number> {
    const { address, port, descriptor } = this.#spec
    const at = descriptor === undefined ? { host: address, port } : { fd: descriptor }
    this.#server.listen({ ...at, ipv6Only: true, backlog: listenBacklog })
    await once(this.#server, 'listening')
    this.#server.on('error', (error) => {
      this.#deps.warn(`accept connections for ${this.#spec.service}: ${error.message}`)
    })
    const bound = this.#server.address()
    return typeof bound === 'object' && bound ? bound.port : port
  }

  update(changes: EndpointChanges): void {
    this.#balancer.update(changes)
    this.#choice = changes
    this.#departures.update(changes)
  }

  stop(): void {
    this.#isStopped = true
    this.#server.close()
    this.#waiting.empty()
    if (this.#connections.size === 0) this.#becomeIdle()
  }

  handOver(): void {
    this.stop()
  }

  cut(): void {
    for (const connection of this.#connections) connection.reset()
  }

  takeCounts(): ListenerCounts | undefined {
    for (const connection of this.#connections) this.#countBytes(connection)
    return this.#traffic.take(this.#spec.key, (endpoint) => this.#balancer.has(endpoint))
  }

  /** Does not wait for the dial, so that other clients are accepted meanwhile (US42). */
  #accept(client: Socket): void {
    const { descriptors, warn } = this.#deps
    if (!this.#waiting.hasClients && this.#takeDescriptors()) {
      this.#admit(client)
      return
    }
    descriptors.wasShort()
    warn(shortageAdvice)
    if (this.#waiting.add(client)) return
    this.#traffic.refused++
    client.resetAndDestroy()
  }

  #takeDescriptors(): boolean {
    const held = this.#connections.size * descriptorsPerConnection
    return this.#deps.descriptors.tryTakeFor(held, descriptorsPerConnection)
  }

  /** The descriptors of the connection are already taken. */
  #admit(client: Socket): void {
    const { now, accessLog } = this.#deps
    const connection = new TcpConnection(client, now(), accessLog !== undefined)
    this.#connections.add(connection)
    this.#traffic.active++
    client.on('error', (error: NodeJS.ErrnoException) => {
      this.#failed(connection, 'client', error)
    })
    client.once('close', () => this.#closed(connection))
    void this.#serve(connection)
  }

  /** Finds an endpoint that answers, then connects both sides. */
  async #serve(connection: TcpConnection): Promise<void> {
    const { client } = connection
    const address = this.#balancer.usesClient ? (client.remoteAddress ?? '') : ''
    const tried: Target[] = []
    for (const timeoutMs of dialTimeoutsMs) {
      const target = await this.#pick(client, address, tried)
      if (!target) break
      const dialedAt = this.#deps.now()
      connection.attempts++
      const outcome = await this.#dial(client, target, timeoutMs)
      if (typeof outcome !== 'string') {
        this.#balancer.dialSucceeded(target)
        this.#traffic.of(target.key).dialed(this.#deps.now() - dialedAt)
        this.#join(connection, outcome, target)
        return
      }
      connection.end = outcome
      this.#balancer.dialFailed(target)
      this.#balancer.ended(target)
      this.#traffic.of(target.key).dialErrors++
      tried.push(target)
    }
    if (connection.attempts === 0) connection.fail('no endpoint')
    this.#traffic.refused++
    client.resetAndDestroy()
  }

  /** The client waits a little while every endpoint has as many connections as it may have. */
  async #pick(client: Socket, address: string, tried: readonly Target[]) {
    for (let waited = 0; ; waited += roomPauseMs) {
      if (client.destroyed) return undefined
      const target = this.#balancer.pick(address, tried)
      if (target || waited >= roomPatienceMs || !this.#balancer.isFull) return target
      await sleep(roomPauseMs)
    }
  }

  /** The client waits while there is no descriptor for the endpoint's socket. */
  async #dial(client: Socket, target: Target, timeoutMs: number): Promise<Socket | string> {
    const { descriptors, warn } = this.#deps
    for (;;) {
      const outcome = await this.#dialOnce(client, target, timeoutMs)
      const isShort = typeof outcome === 'string' && localShortages.has(outcome)
      if (!isShort || client.destroyed) return outcome
      descriptors.wasShort()
      warn(`dial an endpoint of ${this.#spec.service}: ${outcome}; trying again`)
      await sleep(shortagePauseMs)
    }
  }

  #join(connection: TcpConnection, backend: NonNullable<TcpConnection['backend']>, target: Target) {
    if (connection.client.destroyed) {
      backend.resetAndDestroy()
      this.#balancer.ended(target)
      return
    }
    connection.target = target
    connection.end = 'ok'
    const traffic = this.#traffic.of(target.key)
    const { keepAliveMs, firstByteMs } = this.#choice
    const { now } = this.#deps
    const balancer = this.#balancer
    connection.watch = new EndpointWatch({ balancer, traffic, target, now, firstByteMs })
    const ended = () => {
      if (connection.hasRefusedHeader) traffic.headersRefused++
    }
    backend.once('end', () => {
      ended()
      connection.watch?.ended('in order')
    })
    backend.on('error', (error: NodeJS.ErrnoException) => {
      // An error after the end is the answer to our last bytes.
      if (!backend.readableEnded) ended()
      const isFault = !isSilence(error.code) && !connection.client.readableEnded
      if (isFault) connection.watch?.ended('reset by the endpoint')
      this.#failed(connection, 'endpoint', error)
    })
    backend.once('close', () => this.#closed(connection))
    connection.join(backend, this.#headerOf(connection.client))
    if (keepAliveMs === undefined) this.#young.add(connection)
    else if (keepAliveMs > 0) connection.askAfter(keepAliveMs, this.#sockets)
  }

  #failed(connection: TcpConnection, side: 'client' | 'endpoint', error: NodeJS.ErrnoException) {
    const { target, end } = connection
    const code = error.code ?? 'error'
    if (target && end === 'ok') countSilence(this.#traffic.of(target.key), side, code)
    connection.fail(code)
    connection.reset()
  }

  async #dialOnce(client: Socket, target: Target, timeoutMs: number): Promise<Socket | string> {
    const owner = this.#keptClient(client, target)
    // The same connection of the client may have ended only just now.
    for (const port of owner ? [owner.port, 0] : []) {
      if (!this.#sockets || !owner) break
      const fd = this.#sockets.openAs({ ...owner, port }, 'stream')
      if (fd < 0) {
        this.#deps.warn(notKept(this.#spec.service, errnoName(fd)))
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
    const keeper = this.#deps.sourceKeeper
    if (!this.#choice.source || !keeper || remoteAddress === undefined) return undefined
    const from = { ip: withoutScope(remoteAddress), port: remotePort }
    const asked = this.#originalDestination(client, from.ip)
    return keeper.keeps(this.#choice.source, { client: from, asked, target }) ? from : undefined
  }

  #headerOf(client: Socket): Uint8Array | undefined {
    const { remoteAddress = '', remotePort = 0, localAddress = '', localPort = 0 } = client
    const { proxyHeader } = this.#choice
    if (!proxyHeader || remoteAddress === '') return undefined
    const from = { ip: withoutScope(remoteAddress), port: remotePort }
    const asked = this.#originalDestination(client, from.ip) ??
      proxyHeader.asked ?? { ip: withoutScope(localAddress), port: localPort }
    return encodeProxyHeader(proxyHeader.version, 'TCP', from, asked)
  }

  /** What the client asked for, where the kernel knows it. */
  #originalDestination(client: Socket, ip: string): SocketAddress | undefined {
    const fd = descriptorOf(client)
    return fd === undefined ? undefined : this.#sockets?.originalDestination(fd, ip.includes(':'))
  }

  #closed(connection: TcpConnection): void {
    if (!connection.isOver || !this.#connections.delete(connection)) return
    this.#countBytes(connection)
    if (connection.target) this.#balancer.ended(connection.target)
    connection.watch?.ended('otherwise')
    this.#traffic.active--
    this.#young.delete(connection)
    this.#deps.descriptors.release(descriptorsPerConnection)
    this.#deps.accessLog?.(connection.entry(this.#spec.service, this.#deps.now()))
    if (this.#isStopped && this.#connections.size === 0) this.#becomeIdle()
  }

  #countBytes(connection: TcpConnection): void {
    if (!connection.target) return
    const { toEndpoint, toClient } = connection.takeBytes()
    if (toEndpoint === 0 && toClient === 0) return
    const traffic = this.#traffic.of(connection.target.key)
    traffic.bytesToEndpoint += toEndpoint
    traffic.bytesToClient += toClient
  }
}
