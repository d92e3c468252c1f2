import { reset } from '../../../../kernel/sockets/reset.js'
import { once } from 'node:events'
import { createServer, type Server, type Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Sockets } from '../../../../kernel/sockets/sockets.js'
import {
  dialTimeoutsMs,
  listenBacklog,
  type DataPathDeps,
  type ListenerSpec,
  type Target,
} from '../data-path.js'
import { EndpointWatch } from '../endpoint-watch.js'
import { outOfPorts, portAdvice, portPausesMs, shortageAdvice } from '../descriptors.js'
import { descriptorOf } from './node-sockets.js'
import { Dialer } from './dialer.js'
import { TcpConnection } from './tcp-connection.js'
import { TcpListenerBase } from '../tcp-listener-base.js'
import type { TimeoutQueue } from '../timeout-queue.js'
import { type ListenerCounts, countSilence, isSilence } from '../traffic.js'
import { AdmissionQueue } from './admission-queue.js'

/** What the listeners of one worker share. */
interface NetTools {
  readonly awaitingKeepAlive: TimeoutQueue<TcpConnection>
  /** For what Node cannot do with its sockets; undefined where koffi does not load. */
  readonly sockets: Sockets | undefined
}

export class TcpListener extends TcpListenerBase<TcpConnection> {
  readonly #awaitingKeepAlive: TimeoutQueue<TcpConnection>
  readonly #sockets: Sockets | undefined
  readonly #server: Server
  readonly #waiting: AdmissionQueue
  readonly #dialer: Dialer

  constructor(spec: ListenerSpec, deps: DataPathDeps, { awaitingKeepAlive, sockets }: NetTools) {
    super(spec, deps)
    this.#awaitingKeepAlive = awaitingKeepAlive
    this.#sockets = sockets
    this.#dialer = new Dialer(this, deps, sockets)
    this.#waiting = new AdmissionQueue(deps.descriptors, (client) => {
      if (!this.tryTakeDescriptors()) return false
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
    const { address, port, descriptor } = this.spec
    const at = descriptor === undefined ? { host: address, port } : { fd: descriptor }
    this.#server.listen({ ...at, ipv6Only: true, backlog: listenBacklog })
    await once(this.#server, 'listening')
    this.#server.on('error', (error) => {
      this.deps.warn(`accept connections for ${this.service}: ${error.message}`)
    })
    const bound = this.#server.address()
    return typeof bound === 'object' && bound ? bound.port : port
  }

  protected override stopListening(): void {
    this.#server.close()
    this.#waiting.empty()
  }

  override takeCounts(): ListenerCounts | undefined {
    for (const connection of this.connections) this.#countBytes(connection)
    return super.takeCounts()
  }

  /** Does not wait for the dial, so that other clients are accepted meanwhile (US42). */
  #accept(client: Socket): void {
    const { descriptors, warn } = this.deps
    if (!this.#waiting.hasClients && this.tryTakeDescriptors()) {
      this.#admit(client)
      return
    }
    descriptors.wasShort()
    warn(shortageAdvice)
    if (this.#waiting.add(client)) return
    this.traffic.refused++
    reset(client)
  }

  /** The descriptors of the connection are already taken. */
  #admit(client: Socket): void {
    const { now, accessLog } = this.deps
    const connection = new TcpConnection(client, now(), accessLog !== undefined)
    this.began(connection)
    client.on('error', (error: NodeJS.ErrnoException) => {
      this.#failed(connection, 'client', error)
    })
    client.once('close', () => this.#closed(connection))
    void this.#serve(connection)
  }

  /** Finds an endpoint that answers, then connects both sides. */
  async #serve(connection: TcpConnection): Promise<void> {
    const { client, tried } = connection
    const address = this.balancer.usesClient ? (client.remoteAddress ?? '') : ''
    for (const timeoutMs of dialTimeoutsMs) {
      const target = await this.#pick(connection, address)
      if (!target) break
      const dialedAt = this.deps.now()
      connection.attempts++
      const outcome = await this.#dialer.dial(client, target, timeoutMs)
      if (typeof outcome !== 'string') {
        this.balancer.dialSucceeded(target)
        this.traffic.of(target.key).dialed(this.deps.now() - dialedAt)
        this.#join(connection, outcome, target)
        return
      }
      connection.end = outcome
      tried.push(target)
      if (outcome === outOfPorts) {
        // The endpoint is not to blame.
        this.balancer.ended(target)
        this.deps.warn(portAdvice(this.service))
        await sleep(portPausesMs[connection.attempts - 1] ?? 0)
        continue
      }
      this.balancer.dialFailed(target)
      this.balancer.ended(target)
      this.traffic.of(target.key).dialErrors++
    }
    if (connection.attempts === 0) connection.fail('no endpoint')
    this.traffic.refused++
    reset(client)
  }

  /** Waits for a short time when only endpoints are left that have all connections they may. */
  async #pick(connection: TcpConnection, address: string): Promise<Target | undefined> {
    const { client, tried } = connection
    const pick = () => (client.destroyed ? undefined : this.balancer.pick(address, tried))
    return new Promise((resolve) => {
      connection.goOn = () => {
        resolve(pick())
      }
      if (!this.balancer.waitForRoom(connection)) connection.goOn()
    })
  }

  #join(connection: TcpConnection, backend: NonNullable<TcpConnection['backend']>, target: Target) {
    if (connection.client.destroyed) {
      reset(backend)
      this.balancer.ended(target)
      return
    }
    connection.target = target
    connection.end = 'ok'
    const traffic = this.traffic.of(target.key)
    const { keepAliveMs } = this.choice
    connection.watch = new EndpointWatch(this, target, this.deps.now)
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
    connection.join(backend, this.#dialer.header(connection.client), this.#sockets)
    if (keepAliveMs === undefined) this.#awaitingKeepAlive.add(connection)
    else if (keepAliveMs > 0) connection.askAfter(keepAliveMs, this.#sockets)
  }

  #failed(connection: TcpConnection, side: 'client' | 'endpoint', error: NodeJS.ErrnoException) {
    const { target, end } = connection
    const code = error.code ?? 'error'
    if (target && end === 'ok') countSilence(this.traffic.of(target.key), side, code)
    connection.fail(code)
    connection.reset()
  }

  #closed(connection: TcpConnection): void {
    if (!connection.isOver || !this.connections.has(connection)) return
    this.#countBytes(connection)
    connection.watch?.ended('otherwise')
    this.#awaitingKeepAlive.delete(connection)
    this.ended(connection)
  }

  #countBytes(connection: TcpConnection): void {
    const { target } = connection
    if (target) connection.countBytes(this.traffic.of(target.key))
  }
}
