import { once } from 'node:events'
import type { RemoteInfo, Socket } from 'node:dgram'
import { errnoName } from '../../../../kernel/sockets/errno.js'
import type { SocketAddress } from '../../../../kernel/sockets/socket-address.js'
import type { Sockets } from '../../../../kernel/sockets/sockets.js'
import type { DataPathDeps, ListenerSpec, Target } from '../data-path.js'
import { notKept } from '../source-rule.js'
import { createLiteralSocket, descriptorOf, stopReceiving, withoutScope } from './node-sockets.js'
import type { UdpClientTable } from '../udp-client-table.js'
import { UdpListenerBase } from '../udp-listener-base.js'
import { UdpClient } from './udp-client.js'

/** What the UDP listeners of one worker share. */
interface UdpTools {
  readonly table: UdpClientTable
  /** Undefined where koffi does not load. */
  readonly sockets: Sockets | undefined
}

export class UdpListener extends UdpListenerBase<UdpClient> {
  readonly #socket: Socket
  readonly #sockets: Sockets | undefined

  constructor(spec: ListenerSpec, deps: DataPathDeps, { table, sockets }: UdpTools) {
    super(spec, deps, table)
    this.#sockets = sockets
    this.#socket = createLiteralSocket(spec.address)
    this.#socket.on('message', (datagram, from) => this.#received(datagram, from))
  }

  get descriptor(): number | undefined {
    return descriptorOf(this.#socket)
  }

  async listen(): Promise<number> {
    // Must come before `bind`: without a resolver the socket listens before `bind` returns.
    const listening = once(this.#socket, 'listening')
    const { address, port, descriptor } = this.spec
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

  protected override stopReceiving(): boolean {
    return stopReceiving(this.#socket)
  }

  protected override close(): void {
    this.#socket.close()
  }

  #received(datagram: Buffer, from: RemoteInfo): void {
    const key = `${from.address} ${from.port}`
    const client = this.clients.get(key) ?? this.#admit(key, from)
    if (!client) return
    this.asked(client, { datagrams: 1, bytes: datagram.length })
    client.send(datagram)
  }

  #admit(key: string, peer: RemoteInfo): UdpClient | undefined {
    const target = this.balancer.pick(peer.address)
    const client = target && this.tryTakeDescriptor() ? this.#open(key, peer, target) : undefined
    if (client) return client
    if (target) this.balancer.ended(target)
    this.traffic.refused++
    return undefined
  }

  #open(key: string, { address, port }: RemoteInfo, target: Target): UdpClient | undefined {
    const from = { ip: withoutScope(address), port }
    const client = new UdpClient({
      owner: this,
      key,
      peer: { ip: address, port },
      target,
      startedAt: this.deps.now(),
      header: this.header(from, () => this.#ownAddress),
      descriptor: this.#openAs(from, target),
      reply: (to, reply) => {
        this.answered(to, { datagrams: 1, bytes: reply.length })
        // Port 0 says that no answer is wanted, and Node throws.
        if (port !== 0) this.#socket.send(reply, port, address)
      },
    })
    if (client.isEnded) {
      // It found no port of this node, so it was never one of the clients.
      this.deps.descriptors.release(1)
      return undefined
    }
    this.began(client)
    return client
  }

  /** A socket with the address of the client, if the endpoint is to see it. */
  #openAs(client: SocketAddress, target: Target): number | undefined {
    if (!this.keeps(client, target)) return undefined
    const descriptor = this.#sockets?.openAs(client, 'datagram')
    if (descriptor === undefined || descriptor >= 0) return descriptor
    this.deps.warn(notKept(this.service, errnoName(descriptor)))
    return undefined
  }

  get #ownAddress(): SocketAddress {
    const { address, port } = this.#socket.address()
    return { ip: withoutScope(address), port }
  }
}
