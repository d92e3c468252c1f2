import { interest } from '../../../../kernel/sockets/epoll.js'
import { errno, errnoName } from '../../../../kernel/sockets/errno.js'
import {
  addressKey,
  decodeAddress,
  maxAddressLength,
  type SocketAddress,
} from '../../../../kernel/sockets/socket-address.js'
import { unreachable } from '../passive-health.js'
import { socketBufferBytes, type ListenerSpec, type Target } from '../data-path.js'
import { notKept } from '../source-rule.js'
import { UdpListenerBase } from '../udp-listener-base.js'
import type { SpliceContext } from './context.js'
import type { Watcher } from './event-loop.js'
import { UdpClient } from './udp-client.js'

export class UdpListener extends UdpListenerBase<UdpClient> implements Watcher {
  readonly #context: SpliceContext
  #fd = -1

  constructor(spec: ListenerSpec, context: SpliceContext) {
    super(spec, context.deps, context.udpClients)
    this.#context = context
  }

  get descriptor(): number {
    return this.#fd
  }

  listen(): number {
    const { sockets, loop } = this.#context
    const { address: ip, port, descriptor } = this.spec
    this.#fd = descriptor ?? sockets.listen({ ip, port, kind: 'datagram' })
    sockets.bufferSizes(this.#fd, socketBufferBytes)
    // On the wildcard the kernel would choose the source address of replies itself.
    if (ip === '0.0.0.0' || ip === '::') sockets.tellDestination(this.#fd, ip === '::')
    loop.add(this.#fd, interest.readable, this)
    return sockets.localAddress(this.#fd).port
  }

  protected override stopReceiving(): boolean {
    this.#context.loop.forget(this.#fd)
    return true
  }

  protected override close(): void {
    this.#context.outbox.flush(this.#fd)
    this.#context.loop.closeShared(this.#fd)
  }

  /** Receives from clients, and forwards neighbouring datagrams of the same client by one call. */
  ready(): void {
    const { inbox } = this.#context
    const count = inbox.receive(this.#fd, 0, inbox.capacity)
    if (count <= 0) return
    const now = this.deps.now()
    let first = 0
    let key = this.#keyAt(0)
    while (first < count) {
      const from = key
      let end = first + 1
      while (end < count && (key = this.#keyAt(end)) === from) end++
      const client = this.clients.get(from) ?? this.#admit(from, first)
      if (client) this.#forward(client, first, end, now)
      first = end
    }
  }

  collect(client: UdpClient): void {
    const { outbox } = this.#context
    const received = outbox.collect(client, this.#fd)
    if (typeof received !== 'number') this.answered(client, received)
    else if (received !== -errno.EAGAIN) client.failed(errnoName(received))
  }

  refused(client: UdpClient): void {
    const error = this.#context.sockets.takeError(client.fd)
    if (error < 0) client.failed(errnoName(error))
  }

  #keyAt(index: number): number | string {
    const { inbox } = this.#context
    return addressKey(inbox.names.bytes, inbox.nameOffset(index))
  }

  #forward(client: UdpClient, first: number, end: number, now: number): void {
    const { inbox, sockets } = this.#context
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
    this.asked(client, { datagrams: end - first, bytes }, now)
    if (isUnreachable(sent)) client.end(errnoName(sent))
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

  /** Opens a socket for a new client; undefined without an endpoint or a descriptor. */
  #admit(key: number | string, index: number): UdpClient | undefined {
    const { inbox, loop, sockets } = this.#context
    const offset = inbox.nameOffset(index)
    const { proxyHeader, source } = this.choice
    const isSenderWanted = this.balancer.usesClient || proxyHeader || source
    const sender = isSenderWanted ? decodeAddress(inbox.names.view, offset) : undefined
    const target = this.balancer.pick(sender?.ip ?? '')
    const fd = target && this.tryTakeDescriptor() ? this.#connect(target, sender) : -1
    if (!target || fd < 0) {
      if (target) this.balancer.ended(target)
      this.traffic.refused++
      return undefined
    }
    const length = this.spec.address.includes(':') ? maxAddressLength : 16
    const client = new UdpClient({
      owner: this,
      loop,
      fd,
      key,
      address: Uint8Array.from(inbox.names.bytes.subarray(offset, offset + length)),
      asked: inbox.destination(index),
      target,
      startedAt: this.deps.now(),
      header: sender && this.header(sender, () => sockets.localAddress(this.#fd)),
    })
    this.began(client)
    loop.add(fd, interest.readable, client)
    return client
  }

  #connect(target: Target, client: SocketAddress | undefined): number {
    const { sockets, addressOf } = this.#context
    const { deps } = this
    const address = addressOf(target)
    const isKept = client !== undefined && this.keeps(client, target)
    let result = isKept ? sockets.connected('datagram', address, client) : 0
    if (result < 0) deps.warn(notKept(this.service, errnoName(result)))
    if (result <= 0) result = sockets.connected('datagram', address)
    if (result >= 0) {
      sockets.bufferSizes(result, socketBufferBytes)
      return result
    }
    deps.descriptors.release(1)
    if (result === -errno.EMFILE || result === -errno.ENFILE) deps.descriptors.wasShort()
    if (isUnreachable(result)) this.balancer.dialFailed(target, client?.ip)
    this.traffic.of(target.key).dialErrors++
    deps.warn(`open a socket to an endpoint of ${this.service}: ${errnoName(result)}`)
    return result
  }
}

const isUnreachable = (result: number) => result < 0 && unreachable.has(errnoName(result))

/** A connected socket needs no address. */
const connected = new Uint8Array(0)
