import type { IncomingMessage, Server, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'

/**
 * Enough for the kubelet, a few Prometheus servers and the probes of many load balancers, which
 * all ask and leave; few enough that they never take the descriptors of syncs.
 */
export const clientsMax = 64
/** Without a whole request or a byte for so long, a connection ends. */
const idleMs = 10_000
/** An answer that nobody reads ends as well, but a large one may take its time. */
const stalledMs = 30_000

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
 * Bounds the connections of servers together. When there are too many, the oldest idle one goes,
 * not the newest: who comes to ask is served, also while others come only to stay. The address
 * with most of them gives one up, so a crowd from one machine only ever pushes out itself.
 */
export class ClientConnections {
  readonly #max: number
  /** By address and port of the client, which TLS and the socket below agree on; oldest first. */
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
      const client = this.#clients.get(nameOf(request.socket))
      if (!client) return
      client.isAnswered = true
      reply.once('close', () => (client.isAnswered = false))
    })
  }

  #enter(socket: Socket): void {
    const name = nameOf(socket)
    const address = socket.remoteAddress ?? ''
    const client = { socket, address, isAnswered: false }
    this.#clients.set(name, client)
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

function nameOf({ remoteAddress = '', remotePort = 0, localPort = 0 }: Socket): string {
  return `${remoteAddress} ${remotePort} ${localPort}`
}
