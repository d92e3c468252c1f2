import type { Socket } from 'node:net'
import type { SocketAddress } from '../../../../kernel/sockets/socket-address.js'
import { reset } from '../../../../kernel/sockets/reset.js'
import type { Sockets } from '../../../../kernel/sockets/sockets.js'
import { descriptorOf, errorBehind, readBeforeDestroy } from './node-sockets.js'
import { keepAliveDelayMs, type Target, limitSilence } from '../data-path.js'
import type { EndpointTraffic } from '../traffic.js'
import type { EndpointWatch } from '../endpoint-watch.js'
import type { WaitingClient } from '../waiting-clients.js'

/** A client, and the endpoint it talks to once one has answered. */
export class TcpConnection implements WaitingClient {
  readonly client: Socket
  readonly peer: SocketAddress | undefined
  readonly startedAt: number
  backend: Socket | undefined
  target: Target | undefined
  /** Undefined until the endpoint has accepted. */
  watch: EndpointWatch | undefined
  attempts = 0
  readonly tried: Target[] = []
  patientUntil: number | undefined
  goOn: () => void = () => undefined
  end = 'ok'
  /** The length of the PROXY header. Its bytes do not count as the client's. */
  #headerBytes = 0
  /** As counted by the last `countBytes`. */
  bytesToEndpoint = 0
  bytesToClient = 0

  constructor(client: Socket, startedAt: number, isLogged: boolean) {
    this.client = client
    this.startedAt = startedAt
    // A closed socket has no address any more.
    const { remoteAddress: ip = '', remotePort: port = 0 } = isLogged ? client : {}
    this.peer = isLogged ? { ip, port } : undefined
  }

  get isOver(): boolean {
    return this.client.destroyed && (this.backend === undefined || this.backend.destroyed)
  }

  /** Keeps the first error only; others follow from it. */
  fail(code: string): void {
    if (this.end === 'ok') this.end = code
  }

  /** The endpoint gets the header, if any, before the first byte of the client. */
  join(backend: Socket, header: Uint8Array | undefined, sockets: Sockets | undefined): void {
    this.backend = backend
    if (header) backend.write(header)
    this.#headerBytes = header?.length ?? 0
    lead(this.client, backend, sockets)
    lead(backend, this.client, sockets)
    this.client.once('data', () => this.watch?.asked())
    backend.once('data', () => this.watch?.answered())
  }

  /** Whether the endpoint, which has just ended, did so because of the header it got. */
  get hasRefusedHeader(): boolean {
    const { client, backend } = this
    const isWaiting = !client.readableEnded && !client.destroyed
    return this.#headerBytes > 0 && isWaiting && backend !== undefined && client.bytesWritten === 0
  }

  /** A peer of an old connection may have gone without closing it. */
  keepAliveDue(): void {
    this.askAfter(keepAliveDelayMs)
  }

  /** Turns keep-alive on. With `sockets` a peer that does not confirm bytes counts as gone, too. */
  askAfter(silenceMs: number, sockets?: Sockets): void {
    for (const socket of [this.client, this.backend]) {
      socket?.setKeepAlive(true, silenceMs)
      const fd = socket && sockets && descriptorOf(socket)
      if (sockets && fd !== undefined) limitSilence(sockets, fd, silenceMs)
    }
  }

  /** Resets both sides, so that neither takes a failure for an orderly end. */
  reset(): void {
    this.fail('reset')
    if (this.backend) reset(this.backend)
    reset(this.client)
  }

  /** Adds the bytes since the last call. */
  countBytes(traffic: EndpointTraffic): void {
    const toEndpoint = (this.backend?.bytesWritten ?? 0) - this.#headerBytes
    const toClient = this.client.bytesWritten
    traffic.bytesToEndpoint += toEndpoint - this.bytesToEndpoint
    traffic.bytesToClient += toClient - this.bytesToClient
    this.bytesToEndpoint = toEndpoint
    this.bytesToClient = toClient
  }
}

/** Copies bytes from one side to the other. Reads no more while the other side is slow. */
function lead(from: Socket, to: Socket, sockets: Sockets | undefined): void {
  if (sockets) readBeforeDestroy(from, sockets, () => to.end())
  // `pipe` does the same, but costs a short connection 5 % more time.
  from.on('data', (bytes) => {
    if (to.write(bytes)) return
    from.pause()
    to.once('drain', () => from.resume())
  })
  from.resume()
  from.once('end', () => {
    const error = sockets && errorBehind(from, sockets)
    if (error) from.destroy(error)
    else if (sockets) to.end()
    else endWithoutError(from, to)
  })
}

/**
 * libuv reports a reset behind the last bytes as an end. Where the socket cannot be asked, an empty
 * write tells the two apart. When other data waits, it would wait behind it, so then there is none.
 */
function endWithoutError(from: Socket, to: Socket): void {
  if (from.writableEnded || from.writableLength > 0) to.end()
  else {
    from.write('', (error) => {
      if (!error) to.end()
    })
  }
}
