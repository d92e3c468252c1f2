import type { Socket } from 'node:dgram'
import type { Target } from '../data-path.js'
import { createLiteralSocket } from './node-sockets.js'
import { unreachable } from '../passive-health.js'
import type { ClientOwner, TableClient } from '../udp-client-table.js'

/**
 * One client address, and the socket that is connected to its endpoint (US50). Only the endpoint
 * can send to that socket, so whatever it receives is a reply to this client.
 */
export class UdpClient implements TableClient<UdpClient> {
  older: UdpClient | undefined
  newer: UdpClient | undefined
  awaitsReply = true
  readonly owner: ClientOwner
  readonly key: string
  readonly address: string
  readonly port: number
  readonly target: Target
  readonly startedAt: number
  readonly #header: Uint8Array | undefined
  usedAt: number
  bytesToEndpoint = 0
  bytesToClient = 0
  readonly #socket: Socket
  /** Datagrams that came before the socket was connected; undefined afterwards. */
  #early: Buffer[] | undefined = []
  readonly #ended: (client: UdpClient, reason: string) => void
  isEnded = false

  constructor(options: UdpClientOptions) {
    this.owner = options.owner
    this.key = options.key
    this.address = options.address
    this.port = options.port
    this.target = options.target
    this.startedAt = this.usedAt = options.now
    this.#header = options.header
    this.#ended = options.ended
    this.#socket = createLiteralSocket(options.target.ip)
    this.#socket.on('message', (datagram) => {
      this.bytesToClient += datagram.length
      options.reply(this, datagram)
    })
    // ECONNREFUSED means that the endpoint is gone: the next datagram finds another one (US53).
    this.#socket.on('error', this.#failed)
    if (options.descriptor !== undefined) this.#socket.bind({ fd: options.descriptor })
    const { ip, port } = options.target
    if (!this.isEnded) this.#socket.connect(port, ip, this.#connected)
  }

  send(datagram: Buffer): void {
    this.bytesToEndpoint += datagram.length
    if (!this.#early) this.#pass(datagram)
    else if (this.#early.length < maxEarly) this.#early.push(datagram)
  }

  end(reason: string): void {
    if (this.isEnded) return
    this.isEnded = true
    this.#socket.close()
    this.#ended(this, reason)
  }

  readonly #failed = ({ code = 'error' }: NodeJS.ErrnoException): void => this.end(code)

  /** Node calls it with an error if there is no way to the endpoint. */
  readonly #connected = (error?: NodeJS.ErrnoException): void => {
    if (error) this.#failed(error)
    const early = this.#early ?? []
    this.#early = undefined
    if (this.isEnded) return
    for (const datagram of early) this.#pass(datagram)
  }

  #pass(datagram: Buffer): void {
    this.#socket.send(this.#header ? [this.#header, datagram] : datagram, this.#sent)
  }

  /** The kernel tells a refusal only once: to the next datagram, if one is sent at once. */
  readonly #sent = (error: NodeJS.ErrnoException | null): void => {
    if (error && unreachable.has(error.code ?? '')) this.#failed(error)
  }
}

interface UdpClientOptions {
  readonly owner: ClientOwner
  /** Unique among the clients of its listener. */
  readonly key: string
  readonly address: string
  readonly port: number
  readonly target: Target
  readonly now: number
  /** The PROXY header that each datagram begins with, if any. */
  readonly header: Uint8Array | undefined
  /** An open socket to use, which is bound to an address. */
  readonly descriptor: number | undefined
  readonly reply: (client: UdpClient, datagram: Buffer) => void
  readonly ended: (client: UdpClient, reason: string) => void
}

const maxEarly = 64
