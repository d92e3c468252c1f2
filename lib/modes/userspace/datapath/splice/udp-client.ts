import { interest } from '../../../../kernel/sockets/epoll.js'
import { decodeAddress, type SocketAddress } from '../../../../kernel/sockets/socket-address.js'
import { UdpClientBase, type UdpClientOptions, type UdpClientOwner } from '../udp-listener-base.js'
import type { EventLoop, Watcher } from './event-loop.js'

interface ClientListener extends UdpClientOwner {
  /** The endpoint has sent something. */
  collect(client: UdpClient): void
  /** The endpoint's host has refused: the port is closed. */
  refused(client: UdpClient): void
}

/** A client, and a raw socket that is connected to its endpoint. */
export class UdpClient extends UdpClientBase implements Watcher {
  readonly fd: number
  /** Where replies go, in the kernel's form. */
  readonly address: Uint8Array
  /** The address that the client asked. Replies come from it. In the kernel's form, or empty. */
  asked: Uint8Array
  readonly #loop: EventLoop
  readonly #listener: ClientListener

  constructor(options: SpliceClientOptions) {
    super(options)
    this.fd = options.fd
    this.address = options.address
    this.asked = options.asked
    this.#loop = options.loop
    this.#listener = options.owner
  }

  ready(events: number): void {
    if ((events & interest.error) !== 0) this.#listener.refused(this)
    else this.#listener.collect(this)
  }

  get peer(): SocketAddress | undefined {
    const bytes = this.address
    return decodeAddress(new DataView(bytes.buffer, bytes.byteOffset), 0)
  }

  protected override close(): void {
    this.#loop.close(this.fd)
  }
}

interface SpliceClientOptions extends UdpClientOptions {
  readonly owner: ClientListener
  readonly loop: EventLoop
  readonly fd: number
  readonly address: Uint8Array
  readonly asked: Uint8Array
}
