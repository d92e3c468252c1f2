import type { SocketAddress } from '../../../kernel/sockets/socket-address.js'
import type { DataPathDeps, EndpointChanges, ListenerSpec, Target } from './data-path.js'
import { Listener, type Carried } from './listener.js'
import { unreachable } from './passive-health.js'
import type { EndpointTraffic } from './traffic.js'
import type { TableClient, UdpClientTable } from './udp-client-table.js'

/** The listener of a client. */
export type UdpClientOwner = Pick<UdpListenerBase<UdpClientBase>, 'held' | 'traffic' | 'ended'>

/** What was passed on at once. */
export interface Passed {
  readonly datagrams: number
  readonly bytes: number
}

/** What a client is made of. */
export type UdpClientOptions = Pick<
  UdpClientBase,
  'owner' | 'key' | 'target' | 'header' | 'startedAt'
>

/**
 * One client address, and the socket that is connected to its endpoint (US50). Only the endpoint
 * can send to that socket, so whatever it receives is a reply to this client.
 */
export abstract class UdpClientBase implements TableClient, Carried {
  older: TableClient | undefined
  newer: TableClient | undefined
  unanswered = 0
  readonly attempts = 1
  readonly owner: UdpClientOwner
  /** Unique among the clients of its listener. */
  readonly key: number | string
  readonly target: Target
  readonly traffic: EndpointTraffic
  /** The PROXY header that each datagram begins with, if any. */
  readonly header: Uint8Array | undefined
  readonly startedAt: number
  usedAt: number
  bytesToEndpoint = 0
  bytesToClient = 0
  isEnded = false

  constructor(options: UdpClientOptions) {
    this.owner = options.owner
    this.key = options.key
    this.target = options.target
    this.traffic = options.owner.traffic.of(options.target.key)
    this.header = options.header
    this.startedAt = this.usedAt = options.startedAt
  }

  abstract get peer(): SocketAddress | undefined
  protected abstract close(): void

  end(reason: string): void {
    if (this.isEnded) return
    this.isEnded = true
    this.close()
    this.owner.ended(this, reason)
  }

  /**
   * The socket to the endpoint has an error. A datagram that was too large for a link on the way is
   * lost, but the kernel now knows the way's limit, and sends the next ones in fragments.
   */
  failed(code: string): void {
    if (code !== 'EMSGSIZE') this.end(code)
  }
}

/** A UDP service socket: receives from clients, and answers them from the same port (US50). */
export abstract class UdpListenerBase<C extends UdpClientBase> extends Listener {
  protected readonly clients = new Map<number | string, C>()
  protected readonly table: UdpClientTable
  #isHandedOver = false

  constructor(spec: ListenerSpec, deps: DataPathDeps, table: UdpClientTable) {
    super(spec, deps)
    this.table = table
  }

  get held(): number {
    return this.clients.size
  }

  /** Leaves all further datagrams to another process with the same socket; false if it cannot. */
  protected abstract stopReceiving(): boolean
  protected abstract close(): void

  /** Ends clients of removed endpoints, unless these still serve (US53, E21). */
  override update(changes: EndpointChanges): void {
    super.update(changes)
    const serving = new Set(changes.servingKeys)
    for (const client of this.clients.values()) {
      const { key } = client.target
      if (!this.balancer.has(key) && !serving.has(key)) client.end('endpoint removed')
    }
  }

  handOver(): void {
    this.#isHandedOver = this.stopReceiving()
    if (!this.#isHandedOver || this.clients.size === 0) this.stop()
  }

  /** Ends all clients, because their replies need the socket of the listener (US54). */
  stop(): void {
    if (this.isStopped) return
    this.isStopped = true
    for (const client of this.clients.values()) client.end('listener closed')
    this.close()
    this.becomeIdle()
  }

  cut(): void {
    this.stop()
  }

  /** Ends the client that was silent longest when that makes room. */
  protected tryTakeDescriptor(): boolean {
    const { descriptors, warn } = this.deps
    while (!descriptors.tryTakeFor(this.held, 1)) {
      if (this.table.evictFor(this)) continue
      descriptors.wasShort()
      warn('too few file descriptors are left: dropped a datagram; raise the limit of open files')
      return false
    }
    return true
  }

  protected began(client: C): void {
    this.clients.set(client.key, client)
    this.table.add(client, this.spec.udpIdleMs)
    this.traffic.active++
    client.traffic.connections++
  }

  /** Datagrams of the client are on their way to its endpoint. */
  protected asked(client: C, { datagrams, bytes }: Passed, now = this.deps.now()): void {
    this.table.asked(client, datagrams, now)
    client.bytesToEndpoint += bytes
    client.traffic.bytesToEndpoint += bytes
  }

  /** Datagrams have come from the endpoint. Its first answer shows that it works. */
  protected answered(client: C, { datagrams, bytes }: Passed): void {
    if (client.bytesToClient === 0) this.balancer.dialSucceeded(client.target)
    client.bytesToClient += bytes
    client.traffic.bytesToClient += bytes
    if (!client.isEnded) this.table.answered(client, datagrams, this.deps.now())
  }

  ended(client: UdpClientBase, reason: string): void {
    if (!this.clients.delete(client.key)) return
    const { target, traffic } = client
    this.table.remove(client)
    this.deps.descriptors.release(1)
    this.traffic.active--
    this.balancer.ended(target)
    // The next datagram of this client finds another endpoint (US53).
    if (unreachable.has(reason)) {
      this.balancer.dialFailed(target, client.peer?.ip)
      traffic.dialErrors++
    }
    this.log(client, reason)
    if (this.#isHandedOver && this.clients.size === 0) this.stop()
  }
}
