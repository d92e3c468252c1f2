import type { IncomingMessage, Server, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'

/**
 * Enough for the kubelet, a few Prometheus servers and the probes of many load balancers, which
 * all ask and leave; few enough that they never take the descriptors of syncs.
 */
export const guestsMax = 64
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

interface Guest {
  readonly socket: Socket
  readonly address: string
  isAnswered: boolean
}

/**
 * Bounds the connections of servers together. When there are too many, the oldest idle one goes,
 * not the newest: who comes to ask is served, also while others come only to stay. The address
 * with most of them gives one up, so a crowd from one machine only ever pushes out itself.
 */
export class Guests {
  readonly #max: number
  /** By address and port of the client, which TLS and the socket below agree on; oldest first. */
  readonly #guests = new Map<string, Guest>()

  constructor(max = guestsMax) {
    this.#max = max
  }

  get size(): number {
    return this.#guests.size
  }

  watch(server: Server): void {
    server.timeout = stalledMs
    server.on('connection', (socket: Socket) => this.#enter(socket))
    server.prependListener('request', (request: IncomingMessage, reply: ServerResponse) => {
      const guest = this.#guests.get(nameOf(request.socket))
      if (!guest) return
      guest.isAnswered = true
      reply.once('close', () => (guest.isAnswered = false))
    })
  }

  #enter(socket: Socket): void {
    const name = nameOf(socket)
    const address = socket.remoteAddress ?? ''
    const guest = { socket, address, isAnswered: false }
    this.#guests.set(name, guest)
    socket.once('close', () => {
      if (this.#guests.get(name) === guest) this.#guests.delete(name)
    })
    if (this.#guests.size > this.#max) this.#sendAway()
  }

  #sendAway(): void {
    const byAddress = new Map<string, number>()
    for (const { address } of this.#guests.values()) {
      byAddress.set(address, (byAddress.get(address) ?? 0) + 1)
    }
    const most = Math.max(...byAddress.values())
    const crowd = [...this.#guests].filter(([, { address }]) => byAddress.get(address) === most)
    const [name, guest] = crowd.find(([, { isAnswered }]) => !isAnswered) ?? crowd[0] ?? []
    if (name === undefined) return
    this.#guests.delete(name)
    guest?.socket.destroy()
  }
}

function nameOf({ remoteAddress = '', remotePort = 0, localPort = 0 }: Socket): string {
  return `${remoteAddress} ${remotePort} ${localPort}`
}
