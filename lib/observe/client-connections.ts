import type { IncomingMessage, Server, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'

/**
 * Enough for the kubelet, a few Prometheus servers and the probes of many load balancers, which all
 * leave after their answer. Few enough that clients never take the descriptors of syncs.
 */
export const clientsMax = 64
/** A connection ends when it is idle, or has sent no whole request, for this time. */
const idleMs = 10_000
/**
 * A connection ends when nothing of an answer is read for this time; a large one may take longer.
 */
const stalledMs = 30_000
const expectationFailed = 417

/** How long a server waits for clients: for a request, for the rest of one, for the next. */
export function patience(ms = idleMs) {
  return {
    requestTimeout: ms,
    headersTimeout: ms,
    keepAliveTimeout: ms,
    // Node looks for late clients every 30 s otherwise.
    connectionsCheckingInterval: Math.min(ms, 1_000),
  }
}

interface Client {
  readonly socket: Socket
  readonly address: string
  isAnswered: boolean
}

/**
 * Bounds the connections of several servers together. When there are too many, the client address
 * with the most connections loses its oldest idle one. So a new client is served while others only
 * keep connections open, and a crowd from one machine pushes out only itself.
 */
export class ClientConnections {
  readonly #max: number
  /** By the client's address and port, the same for TLS and the socket below it; oldest first. */
  readonly #clients = new Map<string, Client>()

  constructor(max = clientsMax) {
    this.#max = max
  }

  get size(): number {
    return this.#clients.size
  }

  watch(server: Server): void {
    server.timeout = stalledMs
    server.on('connection', (socket: Socket) => this.#enter(socket))
    server.prependListener('request', (request: IncomingMessage, reply: ServerResponse) => {
      this.#asked(request, reply)
    })
    // Node answers these itself, without the event above.
    server.on('checkExpectation', (request: IncomingMessage, reply: ServerResponse) => {
      this.#asked(request, reply)
      reply.writeHead(expectationFailed).end()
    })
  }

  /** Ends all connections, also those in the middle of a TLS handshake, which no server knows. */
  end(): void {
    for (const { socket } of this.#clients.values()) socket.destroy()
  }

  #asked({ socket }: IncomingMessage, reply: ServerResponse): void {
    if (socket.destroyed) return
    const client = this.#clients.get(nameOf(socket))
    if (!client) return
    // One packet may hold hundreds of requests, and this thread answers all of them before a sync.
    if (client.isAnswered) stopReading(socket)
    client.isAnswered = true
    reply.once('close', () => (client.isAnswered = false))
  }

  #enter(socket: Socket): void {
    const name = nameOf(socket)
    const address = socket.remoteAddress ?? ''
    const client = { socket, address, isAnswered: false }
    this.#clients.set(name, client)
    // A client that left without a word is noticed, and keeps no place.
    socket.setKeepAlive(true, stalledMs)
    socket.once('close', () => {
      if (this.#clients.get(name) === client) this.#clients.delete(name)
    })
    if (this.#clients.size > this.#max) this.#closeOne()
  }

  #closeOne(): void {
    const byAddress = new Map<string, number>()
    for (const { address } of this.#clients.values()) {
      byAddress.set(address, (byAddress.get(address) ?? 0) + 1)
    }
    const most = Math.max(...byAddress.values())
    const crowd = [...this.#clients].filter(([, { address }]) => byAddress.get(address) === most)
    const [name, client] = crowd.find(([, { isAnswered }]) => !isAnswered) ?? crowd[0] ?? []
    if (name === undefined) return
    this.#clients.delete(name)
    client?.socket.destroy()
  }
}

/** What Node answers its parser for a request after which another protocol begins. */
const noMoreRequests = 2

/**
 * Ends a connection, with what it has sent. Node parses all requests of a packet, also after the end
 * of their connection. What its parser asks is not documented; without it only time is lost.
 */
function stopReading(socket: Socket): void {
  socket.destroy()
  const parser: unknown = Reflect.get(socket, 'parser')
  if (typeof parser !== 'object' || parser === null) return
  Reflect.set(parser, 'onIncoming', () => noMoreRequests)
}

function nameOf({ remoteAddress = '', remotePort = 0, localPort = 0 }: Socket): string {
  return `${remoteAddress} ${remotePort} ${localPort}`
}
