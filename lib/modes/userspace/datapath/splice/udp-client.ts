import { interest } from '../../../../kernel/sockets/epoll.js'
import { decodeAddress, type SocketAddress } from '../../../../kernel/sockets/socket-address.js'
import { hostPort } from '../../../../state/ip.js'
import type { Target } from '../data-path.js'
import type { EndpointTraffic } from '../traffic.js'
import type { ClientOwner, TableClient } from '../udp-client-table.js'
import type { Watcher } from './event-loop.js'

/** The listener of a client, which does its work. */
export interface UdpClientOwner extends ClientOwner {
  /** The endpoint has sent something. */
  collect(client: UdpClient): void
  /** The endpoint's host has refused: the port is closed. */
  refused(client: UdpClient): void
  end(client: UdpClient, reason: string): void
}

/**
 * One client address, and the socket that is connected to its endpoint (US50). Only the endpoint
 * can send to that socket, so whatever it receives is a reply to this client.
 */
export class UdpClient implements Watcher, TableClient<UdpClient> {
  older: UdpClient | undefined
  newer: UdpClient | undefined
  awaitsReply = true
  readonly owner: UdpClientOwner
  readonly fd: number
  readonly key: number | string
  /** Where replies go, in the kernel's form. */
  readonly address: Uint8Array
  /** The address that the client asked. Replies come from it. In the kernel's form, or empty. */
  asked: Uint8Array
  readonly target: Target
  readonly traffic: EndpointTraffic
  readonly startedAt: number
  /** The PROXY header that each datagram begins with, if any. */
  readonly header: Uint8Array | undefined
  usedAt: number
  bytesToEndpoint = 0
  bytesToClient = 0

  constructor(options: UdpClientOptions) {
    this.owner = options.owner
    this.fd = options.fd
    this.key = options.key
    this.address = options.address
    this.asked = options.asked
    this.target = options.target
    this.traffic = options.traffic
    this.header = options.header
    this.startedAt = this.usedAt = options.now
  }

  ready(events: number): void {
    if ((events & interest.error) !== 0) this.owner.refused(this)
    else this.owner.collect(this)
  }

  end(reason: string): void {
    this.owner.end(this, reason)
  }

  /** `ip:port` for the access log. */
  get name(): string {
    const { place } = this
    return place ? hostPort(place.ip, place.port) : ''
  }

  get place(): SocketAddress | undefined {
    const bytes = this.address
    return decodeAddress(new DataView(bytes.buffer, bytes.byteOffset), 0)
  }
}

interface UdpClientOptions {
  readonly owner: UdpClientOwner
  readonly fd: number
  readonly key: number | string
  readonly address: Uint8Array
  readonly asked: Uint8Array
  readonly target: Target
  readonly traffic: EndpointTraffic
  readonly now: number
  readonly header: Uint8Array | undefined
}
