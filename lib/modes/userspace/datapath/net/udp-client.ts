import type { Socket } from 'node:dgram'
import type { SocketAddress } from '../../../../kernel/sockets/socket-address.js'
import { unreachable } from '../passive-health.js'
import { UdpClientBase, type UdpClientOptions } from '../udp-listener-base.js'
import { createLiteralSocket } from './node-sockets.js'

/** A client, and a socket of Node that is connected to its endpoint. */
export class UdpClient extends UdpClientBase {
  readonly peer: SocketAddress
  readonly #socket: Socket
  /** Datagrams that came before the socket was connected; undefined afterwards. */
  #early: Buffer[] | undefined = []

  constructor(options: NetClientOptions) {
    super(options)
    const { peer, target, descriptor, reply } = options
    this.peer = peer
    this.#socket = createLiteralSocket(target.ip)
    this.#socket.on('message', (datagram) => reply(this, datagram))
    // ECONNREFUSED means that the endpoint is gone: the next datagram finds another one (US53).
    this.#socket.on('error', this.#noted)
    if (descriptor !== undefined) this.#socket.bind({ fd: descriptor })
    if (!this.isEnded) this.#socket.connect(target.port, target.ip, this.#connected)
  }

  send(datagram: Buffer): void {
    if (!this.#early) this.#pass(datagram)
    else if (this.#early.length < maxEarly) this.#early.push(datagram)
  }

  protected override close(): void {
    this.#socket.close()
  }

  readonly #noted = ({ code = 'error' }: NodeJS.ErrnoException): void => this.failed(code)

  /** Node calls it with an error if there is no way to the endpoint. */
  readonly #connected = (error?: NodeJS.ErrnoException): void => {
    if (error) this.#noted(error)
    const early = this.#early ?? []
    this.#early = undefined
    if (this.isEnded) return
    for (const datagram of early) this.#pass(datagram)
  }

  #pass(datagram: Buffer): void {
    this.#socket.send(this.header ? [this.header, datagram] : datagram, this.#sent)
  }

  /** The kernel tells a refusal only once: to the next datagram, if one is sent at once. */
  readonly #sent = (error: NodeJS.ErrnoException | null): void => {
    if (error && unreachable.has(error.code ?? '')) this.#noted(error)
  }
}

interface NetClientOptions extends UdpClientOptions {
  readonly peer: SocketAddress
  /** An open socket to use, which is bound to an address. */
  readonly descriptor: number | undefined
  readonly reply: (client: UdpClient, datagram: Buffer) => void
}

const maxEarly = 64
