import { reset } from '../../../../kernel/sockets/reset.js'
import { once } from 'node:events'
import { createServer, type Server, type Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
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
import { RemovedEndpoints } from '../removed-endpoints.js'
import { descriptorsPerConnection, shortageAdvice } from '../descriptors.js'
import type { DataPathDeps, ListenerSpec, Target } from '../data-path.js'
import type { Listener } from '../data-path.js'
import { descriptorOf } from './node-sockets.js'
import { Dialer, type DialOwner } from './dialer.js'
import { TcpConnection } from './tcp-connection.js'
import type { TimeoutQueue } from '../timeout-queue.js'
import { ListenerTraffic, type ListenerCounts, countSilence, isSilence } from '../traffic.js'
import { AdmissionQueue } from './admission-queue.js'

/** What the listeners of one worker share. */
interface NetTools {
  readonly awaitingKeepAlive: TimeoutQueue<TcpConnection>
  /** For what Node cannot do with its sockets; undefined where koffi does not load. */
  readonly sockets: Sockets | undefined
}

/** One listening TCP socket and the connections that came through it. */
export class TcpListener implements Listener, DialOwner {
  readonly #spec: ListenerSpec
  readonly #deps: DataPathDeps
  readonly #awaitingKeepAlive: TimeoutQueue<TcpConnection>
  readonly #sockets: Sockets | undefined
  readonly #balancer: Balancer
  readonly #server: Server
  readonly #traffic = new ListenerTraffic()
  readonly #connections = new Set<TcpConnection>()
  readonly #removedEndpoints: RemovedEndpoints
  readonly #waiting: AdmissionQueue
  readonly #dialer: Dialer
  #choice: Omit<EndpointChoice, 'endpoints'>
  #isStopped = false
  readonly idle: Promise<void>
  #becomeIdle: () => void = () => undefined

  constructor(spec: ListenerSpec, deps: DataPathDeps, { awaitingKeepAlive, sockets }: NetTools) {
    this.#spec = spec
    this.#choice = spec
    this.#deps = deps
    this.#awaitingKeepAlive = awaitingKeepAlive
    this.#sockets = sockets
    this.#dialer = new Dialer(this, deps, sockets)
    this.#balancer = new Balancer(deps, spec)
    const isUsed = (endpoint: string) => this.#balancer.has(endpoint)
    this.#removedEndpoints = new RemovedEndpoints(this.#connections, isUsed, spec.servingKeys)
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

  get service(): string {
    return this.#spec.service
  }

  get choice(): Omit<EndpointChoice, 'endpoints'> {
    return this.#choice
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
      this.#deps.warn(`accept connections for ${this.service}: ${error.message}`)
    })
    const bound = this.#server.address()
    return typeof bound === 'object' && bound ? bound.port : port
  }

  update(changes: EndpointChanges): void {
    this.#balancer.update(changes)
    this.#choice = changes
    this.#removedEndpoints.update(changes)
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
    return this.#traffic.take(this.#spec.key, (endpoint) => this.#balancer.needs(endpoint))
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
    reset(client)
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
      const target = await this.#pick(connection, address, tried)
      if (!target) break
      const dialedAt = this.#deps.now()
      connection.attempts++
      const outcome = await this.#dialer.dial(client, target, timeoutMs)
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
    reset(client)
  }

  /** Waits for a short time when only endpoints are left that have all connections they may. */
  async #pick(connection: TcpConnection, address: string, tried: readonly Target[]) {
    while (connection.waitedMs < roomPatienceMs && this.#balancer.isFull(tried)) {
      if (connection.client.destroyed) return undefined
      connection.waitedMs += roomPauseMs
      await sleep(roomPauseMs)
    }
    return connection.client.destroyed ? undefined : this.#balancer.pick(address, tried)
  }

  #join(connection: TcpConnection, backend: NonNullable<TcpConnection['backend']>, target: Target) {
    if (connection.client.destroyed) {
      reset(backend)
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
      // An error after the endpoint's end is only its answer to our last bytes.
      if (!backend.readableEnded) ended()
      const isFault = !isSilence(error.code) && !connection.client.readableEnded
      if (isFault) connection.watch?.ended('reset by the endpoint')
      this.#failed(connection, 'endpoint', error)
    })
    backend.once('close', () => this.#closed(connection))
    connection.join(backend, this.#dialer.header(connection.client))
    if (keepAliveMs === undefined) this.#awaitingKeepAlive.add(connection)
    else if (keepAliveMs > 0) connection.askAfter(keepAliveMs, this.#sockets)
  }

  #failed(connection: TcpConnection, side: 'client' | 'endpoint', error: NodeJS.ErrnoException) {
    const { target, end } = connection
    const code = error.code ?? 'error'
    if (target && end === 'ok') countSilence(this.#traffic.of(target.key), side, code)
    connection.fail(code)
    connection.reset()
  }

  #closed(connection: TcpConnection): void {
    if (!connection.isOver || !this.#connections.delete(connection)) return
    this.#countBytes(connection)
    if (connection.target) this.#balancer.ended(connection.target)
    connection.watch?.ended('otherwise')
    this.#traffic.active--
    this.#awaitingKeepAlive.delete(connection)
    this.#deps.descriptors.release(descriptorsPerConnection)
    this.#deps.accessLog?.(connection.entry(this.service, this.#deps.now()))
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
