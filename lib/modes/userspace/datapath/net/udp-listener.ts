import { once } from 'node:events'
import type { RemoteInfo, Socket } from 'node:dgram'
import { errnoName } from '../../../../kernel/sockets/errno.js'
import type { SocketAddress } from '../../../../kernel/sockets/socket-address.js'
import type { Sockets } from '../../../../kernel/sockets/sockets.js'
import { hostPort } from '../../../../state/ip.js'
import { Balancer } from '../balancer.js'
import type { DataPathDeps, EndpointChanges, ListenerSpec, Target } from '../data-path.js'
import { unreachable } from '../passive-health.js'
import { notKept, type SourceRule } from '../source-rule.js'
import type { Listener } from '../data-path.js'
import { createLiteralSocket, descriptorOf, stopReceiving, withoutScope } from './node-sockets.js'
import { encodeProxyHeader, type ProxyHeader } from '../proxy-header.js'
import { ListenerTraffic, type ListenerCounts } from '../traffic.js'
import type { UdpClientTable } from '../udp-client-table.js'
import { UdpClient } from './udp-client.js'

/** What the UDP listeners of one worker share. */
interface UdpTools {
  readonly table: UdpClientTable<UdpClient>
  /** Undefined where koffi does not load. */
  readonly sockets: Sockets | undefined
}

/** One UDP service socket: receives from clients, and answers them from the same port (US50). */
export class UdpListener implements Listener {
  readonly #spec: ListenerSpec
  readonly #deps: DataPathDeps
  readonly #balancer: Balancer
  readonly #table: UdpClientTable<UdpClient>
  readonly #socket: Socket
  readonly #traffic = new ListenerTraffic()
  readonly #clients = new Map<string, UdpClient>()
  #header: ProxyHeader | undefined
  #source: SourceRule | undefined
  readonly #sockets: Sockets | undefined
  #isStopped = false
  #isHandedOver = false
  readonly idle: Promise<void>
  #becomeIdle: () => void = () => undefined

  constructor(spec: ListenerSpec, deps: DataPathDeps, { table, sockets }: UdpTools) {
    this.#sockets = sockets
    this.#spec = spec
    this.#header = spec.proxyHeader
    this.#source = spec.source
    this.#deps = deps
    this.#balancer = new Balancer(deps, spec)
    this.#table = table
    this.idle = new Promise((resolve) => (this.#becomeIdle = resolve))
    this.#socket = createLiteralSocket(spec.address)
    this.#socket.on('message', (datagram, from) => this.#received(datagram, from))
  }

  get held(): number {
    return this.#clients.size
  }

  get descriptor(): number | undefined {
    return descriptorOf(this.#socket)
  }

  async listen(): Promise<number> {
    // Must come before `bind`: without a resolver the socket listens before `bind` returns.
    const listening = once(this.#socket, 'listening')
    const { address, port, descriptor } = this.#spec
    this.#socket.bind(descriptor === undefined ? { address, port } : { fd: descriptor })
    try {
      await listening
    } catch (error) {
      this.#socket.close()
      throw error
    }
    // A reply that cannot be sent is lost, which is allowed for datagrams.
    this.#socket.on('error', () => undefined)
    return this.#socket.address().port
  }

  /** Ends clients of removed endpoints, unless these still serve (US53, E21). */
  update(changes: EndpointChanges): void {
    this.#balancer.update(changes)
    this.#header = changes.proxyHeader
    this.#source = changes.source
    const serving = new Set(changes.servingKeys)
    for (const client of this.#clients.values()) {
      const { key } = client.target
      if (!this.#balancer.has(key) && !serving.has(key)) client.end('endpoint removed')
    }
  }

  handOver(): void {
    this.#isHandedOver = stopReceiving(this.#socket)
    if (!this.#isHandedOver || this.#clients.size === 0) this.stop()
  }

  /** Ends all clients, because their replies need the socket of the listener (US54). */
  stop(): void {
    if (this.#isStopped) return
    this.#isStopped = true
    for (const client of this.#clients.values()) client.end('listener closed')
    this.#socket.close()
    this.#becomeIdle()
  }

  cut(): void {
    this.stop()
  }

  takeCounts(): ListenerCounts | undefined {
    return this.#traffic.take(this.#spec.key, (endpoint) => this.#balancer.needs(endpoint))
  }

  #received(datagram: Buffer, from: RemoteInfo): void {
    const key = `${from.address} ${from.port}`
    const client = this.#clients.get(key) ?? this.#admit(key, from)
    if (!client) return
    this.#table.asked(client)
    this.#traffic.of(client.target.key).bytesToEndpoint += datagram.length
    client.send(datagram)
  }

  #admit(key: string, from: RemoteInfo): UdpClient | undefined {
    const { descriptors, now, warn } = this.#deps
    const target = this.#balancer.pick(from.address)
    if (!target) {
      this.#traffic.refused++
      return undefined
    }
    while (!descriptors.tryTakeFor(this.held, 1)) {
      if (this.#table.evictFor(this)) continue
      this.#traffic.refused++
      descriptors.wasShort()
      warn('too few file descriptors are left: dropped a datagram; raise the limit of open files')
      this.#balancer.ended(target)
      return undefined
    }
    const client = new UdpClient({
      owner: this,
      key,
      address: from.address,
      port: from.port,
      target,
      now: now(),
      header: this.#headerOf(from),
      descriptor: this.#openAs(from, target),
      reply: (to, reply) => {
        if (!to.isEnded) this.#table.answered(to)
        // Its first answer shows that the endpoint works.
        if (to.bytesToClient === reply.length) this.#balancer.dialSucceeded(target)
        this.#traffic.of(target.key).bytesToClient += reply.length
        // Port 0 says that no answer is wanted, and Node throws.
        if (to.port !== 0) this.#socket.send(reply, to.port, to.address)
      },
      ended: (ended, reason) => this.#ended(ended, reason),
    })
    if (client.isEnded) {
      // It found no port of this node, so it was never one of the clients.
      descriptors.release(1)
      this.#balancer.ended(target)
      this.#traffic.refused++
      return undefined
    }
    this.#table.add(client, this.#spec.udpIdleMs)
    this.#clients.set(key, client)
    this.#traffic.active++
    this.#traffic.of(target.key).connections++
    return client
  }

  /** A socket with the address of the client, if the endpoint is to see it. */
  #openAs({ address, port }: RemoteInfo, target: Target): number | undefined {
    const { sourceKeeper } = this.#deps
    const client = { ip: withoutScope(address), port }
    const dialed = { client, asked: undefined, target }
    if (!this.#source || sourceKeeper?.keeps(this.#source, dialed) !== true) return undefined
    const descriptor = this.#sockets?.openAs(client, 'datagram')
    if (descriptor === undefined || descriptor >= 0) return descriptor
    this.#deps.warn(notKept(this.#spec.service, errnoName(descriptor)))
    return undefined
  }

  #headerOf({ address, port }: RemoteInfo): Uint8Array | undefined {
    if (!this.#header) return undefined
    const { version, asked = this.#ownAddress } = this.#header
    return encodeProxyHeader(version, 'UDP', { ip: withoutScope(address), port }, asked)
  }

  get #ownAddress(): SocketAddress {
    const { address, port } = this.#socket.address()
    return { ip: withoutScope(address), port }
  }

  #ended(client: UdpClient, reason: string): void {
    if (!this.#clients.delete(client.key)) return
    this.#table.remove(client)
    this.#deps.descriptors.release(1)
    this.#traffic.active--
    this.#balancer.ended(client.target)
    if (unreachable.has(reason)) {
      this.#balancer.dialFailed(client.target, client.address)
      this.#traffic.of(client.target.key).dialErrors++
    }
    this.#deps.accessLog?.({
      service: this.#spec.service,
      protocol: 'UDP',
      client: hostPort(client.address, client.port),
      endpoint: client.target.key,
      attempts: 1,
      bytesToEndpoint: client.bytesToEndpoint,
      bytesToClient: client.bytesToClient,
      durationMs: Math.round(this.#deps.now() - client.startedAt),
      end: reason,
    })
    if (this.#isHandedOver && this.#clients.size === 0) this.stop()
  }
}
