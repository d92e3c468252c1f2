import { interest } from '../../../../kernel/sockets/epoll.js'
import { errno, errnoName } from '../../../../kernel/sockets/errno.js'
import {
  addressKey,
  decodeAddress,
  maxAddressLength,
  type SocketAddress,
} from '../../../../kernel/sockets/socket-address.js'
import { Balancer } from '../balancer.js'
import { unreachable } from '../passive-health.js'
import { encodeProxyHeader, type ProxyHeader } from '../proxy-header.js'
import type { EndpointChanges, ListenerSpec, Target } from '../data-path.js'
import { notKept, type SourceRule } from '../source-rule.js'
import type { Listener } from '../data-path.js'
import { ListenerTraffic, type ListenerCounts } from '../traffic.js'
import type { SpliceContext } from './context.js'
import type { Watcher } from './event-loop.js'
import { UdpClient, type UdpClientOwner } from './udp-client.js'

/** One UDP service socket: receives from clients, and answers them from the same port (US50). */
export class UdpListener implements Listener, UdpClientOwner, Watcher {
  readonly idle: Promise<void>
  readonly #context: SpliceContext
  readonly #balancer: Balancer
  readonly #traffic = new ListenerTraffic()
  readonly #clients = new Map<number | string, UdpClient>()
  readonly #spec: ListenerSpec
  #header: ProxyHeader | undefined
  #source: SourceRule | undefined
  #fd = -1
  #isStopped = false
  #isHandedOver = false
  #becomeIdle: () => void = () => undefined

  constructor(spec: ListenerSpec, context: SpliceContext) {
    this.#spec = spec
    this.#header = spec.proxyHeader
    this.#source = spec.source
    this.#context = context
    this.#balancer = new Balancer(context.deps, spec)
    this.idle = new Promise((resolve) => (this.#becomeIdle = resolve))
  }

  get held(): number {
    return this.#clients.size
  }

  get descriptor(): number {
    return this.#fd
  }

  listen(): Promise<number> {
    const { sockets, loop } = this.#context
    const { address: ip, port, descriptor } = this.#spec
    return Promise.resolve().then(() => {
      this.#fd = descriptor ?? sockets.listen({ ip, port, kind: 'datagram' })
      sockets.bufferSizes(this.#fd, socketBufferBytes)
      // On the wildcard the kernel would choose the source address of replies itself.
      if (ip === '0.0.0.0' || ip === '::') sockets.tellDestination(this.#fd, ip === '::')
      loop.add(this.#fd, interest.readable, this)
      return sockets.localAddress(this.#fd).port
    })
  }

  /** Ends clients of removed endpoints, unless these still serve (US53, E21). */
  update(changes: EndpointChanges): void {
    this.#balancer.update(changes)
    this.#header = changes.proxyHeader
    this.#source = changes.source
    const serving = new Set(changes.servingKeys)
    for (const client of this.#clients.values()) {
      const { key } = client.target
      if (!this.#balancer.has(key) && !serving.has(key)) this.end(client, 'endpoint removed')
    }
  }

  handOver(): void {
    this.#isHandedOver = true
    this.#context.loop.forget(this.#fd)
    if (this.#clients.size === 0) this.stop()
  }

  /** Ends all clients, as replies need the socket of the listener (US54). */
  stop(): void {
    if (this.#isStopped) return
    this.#isStopped = true
    this.#context.outbox.flush(this.#fd)
    for (const client of this.#clients.values()) this.end(client, 'listener closed')
    this.#context.loop.closeShared(this.#fd)
    this.#becomeIdle()
  }

  cut(): void {
    this.stop()
  }

  takeCounts(): ListenerCounts | undefined {
    return this.#traffic.take(this.#spec.key, (endpoint) => this.#balancer.needs(endpoint))
  }

  /** Receives from clients, and forwards neighbouring datagrams of the same client by one call. */
  ready(): void {
    const { inbox, deps } = this.#context
    const count = inbox.receive(this.#fd, 0, inbox.capacity)
    if (count <= 0) return
    const now = deps.now()
    let first = 0
    let key = this.#keyAt(0)
    while (first < count) {
      const from = key
      let end = first + 1
      while (end < count && (key = this.#keyAt(end)) === from) end++
      const client = this.#clients.get(from) ?? this.#admit(from, first)
      if (client) this.#forward(client, first, end, now)
      first = end
    }
  }

  collect(client: UdpClient): void {
    const { outbox, udpClients, deps } = this.#context
    const bytes = outbox.collect(client, this.#fd)
    if (bytes === -errno.EAGAIN) return
    if (bytes < 0) {
      this.#failed(client, bytes)
      return
    }
    // Its first answer shows that the endpoint works.
    if (client.bytesToClient === 0) this.#balancer.dialSucceeded(client.target)
    client.bytesToClient += bytes
    client.traffic.bytesToClient += bytes
    udpClients.answered(client, deps.now())
  }

  refused(client: UdpClient): void {
    const error = this.#context.sockets.takeError(client.fd)
    if (error < 0) this.#failed(client, error)
  }

  end(client: UdpClient, reason: string): void {
    if (!this.#clients.delete(client.key)) return
    const { loop, udpClients, deps } = this.#context
    loop.close(client.fd)
    udpClients.remove(client)
    deps.descriptors.release(1)
    this.#traffic.active--
    this.#balancer.ended(client.target)
    deps.accessLog?.({
      service: this.#spec.service,
      protocol: 'UDP',
      client: client.name,
      endpoint: client.target.key,
      attempts: 1,
      bytesToEndpoint: client.bytesToEndpoint,
      bytesToClient: client.bytesToClient,
      durationMs: Math.round(deps.now() - client.startedAt),
      end: reason,
    })
    if (this.#isHandedOver && this.#clients.size === 0) this.stop()
  }

  #keyAt(index: number): number | string {
    const { inbox } = this.#context
    return addressKey(inbox.names.bytes, inbox.nameOffset(index))
  }

  #forward(client: UdpClient, first: number, end: number, now: number): void {
    const { inbox, udpClients, sockets } = this.#context
    let bytes = 0
    for (let index = first; index < end; index++) bytes += inbox.length(index)
    // Replies come from the address of ours that the client sent to last.
    if (!inbox.hasDestination(first, client.asked)) client.asked = inbox.destination(first)
    let sent = 0
    if (client.header) {
      for (let index = first; index < end && !isUnreachable(sent); index++)
        sent = this.#sendBehind(client.header, client.fd, index)
    } else if (end === first + 1) sent = sockets.send(client.fd, inbox.dataAddress(first), bytes)
    else sent = this.#sendAll(client.fd, first, end)
    udpClients.asked(client, now)
    client.bytesToEndpoint += bytes
    client.traffic.bytesToEndpoint += bytes
    if (isUnreachable(sent)) this.#failed(client, sent)
  }

  /** Returns the error of the last call. A datagram that cannot be sent is left out. */
  #sendAll(fd: number, first: number, end: number): number {
    const { inbox } = this.#context
    for (let index = first; index < end; index++) {
      inbox.prepare(index, inbox.length(index), connected)
    }
    let sent = 0
    for (let next = first; next < end; next += Math.max(sent, 1)) {
      // The call ends before a datagram that was refused, and forgets why. The next call is told,
      // or the event loop after the last datagram.
      sent = inbox.send(fd, next, end)
      if (sent === -errno.EAGAIN || isUnreachable(sent)) break
    }
    return sent
  }

  #sendBehind(header: Uint8Array, fd: number, index: number): number {
    const { inbox, sockets } = this.#context
    return sockets.send(fd, inbox.prefix(index, header), header.length + inbox.length(index))
  }

  #headerOf(sender: SocketAddress | undefined): Uint8Array | undefined {
    if (!this.#header || !sender) return undefined
    const { version, asked = this.#context.sockets.localAddress(this.#fd) } = this.#header
    return encodeProxyHeader(version, 'UDP', sender, asked)
  }

  /** Opens a socket for a new client; undefined without an endpoint or a descriptor. */
  #admit(key: number | string, index: number): UdpClient | undefined {
    const { deps, inbox, udpClients, loop } = this.#context
    const offset = inbox.nameOffset(index)
    const isSenderWanted =
      this.#balancer.usesClient || this.#header !== undefined || this.#source !== undefined
    const sender = isSenderWanted ? decodeAddress(inbox.names.view, offset) : undefined
    const target = this.#balancer.pick(sender?.ip ?? '')
    const fd = target && this.#takeDescriptor() ? this.#connect(target, sender) : -1
    if (!target || fd < 0) {
      if (target) this.#balancer.ended(target)
      this.#traffic.refused++
      return undefined
    }
    const length = this.#spec.address.includes(':') ? maxAddressLength : 16
    const client = new UdpClient({
      owner: this,
      fd,
      key,
      address: Uint8Array.from(inbox.names.bytes.subarray(offset, offset + length)),
      asked: inbox.destination(index),
      target,
      traffic: this.#traffic.of(target.key),
      now: deps.now(),
      header: this.#headerOf(sender),
    })
    this.#clients.set(key, client)
    udpClients.add(client, this.#spec.udpIdleMs)
    loop.add(fd, interest.readable, client)
    this.#traffic.active++
    client.traffic.connections++
    return client
  }

  /** Ends the client that was silent longest when that makes room. */
  #takeDescriptor(): boolean {
    const { deps, udpClients } = this.#context
    while (!deps.descriptors.tryTakeFor(this.held, 1)) {
      if (udpClients.evictFor(this)) continue
      deps.descriptors.wasShort()
      deps.warn(
        'too few file descriptors are left: dropped a datagram; raise the limit of open files',
      )
      return false
    }
    return true
  }

  #connect(target: Target, client: SocketAddress | undefined): number {
    const { sockets, addressOf, deps } = this.#context
    const address = addressOf(target)
    const isKept =
      client !== undefined &&
      this.#source !== undefined &&
      deps.sourceKeeper?.keeps(this.#source, { client, asked: undefined, target }) === true
    let result = isKept ? sockets.connected('datagram', address, client) : 0
    if (result < 0) deps.warn(notKept(this.#spec.service, errnoName(result)))
    if (result <= 0) result = sockets.connected('datagram', address)
    if (result >= 0) {
      sockets.bufferSizes(result, socketBufferBytes)
      return result
    }
    deps.descriptors.release(1)
    if (result === -errno.EMFILE || result === -errno.ENFILE) deps.descriptors.wasShort()
    if (isUnreachable(result)) this.#balancer.dialFailed(target, client?.ip)
    this.#traffic.of(target.key).dialErrors++
    deps.warn(`open a socket to an endpoint of ${this.#spec.service}: ${errnoName(result)}`)
    return result
  }

  /** The next datagram of this client finds another endpoint (US53). */
  #failed(client: UdpClient, error: number): void {
    if (isUnreachable(error)) {
      this.#balancer.dialFailed(client.target, client.place?.ip)
      client.traffic.dialErrors++
    }
    this.end(client, errnoName(error))
  }
}

const isUnreachable = (result: number) => result < 0 && unreachable.has(errnoName(result))

/** A connected socket needs no address. */
const connected = new Uint8Array(0)
/** Room for a burst; the kernel caps it at net.core.rmem_max and wmem_max. */
const socketBufferBytes = 1 << 20
