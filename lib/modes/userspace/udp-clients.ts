import { createSocket, type Socket } from 'node:dgram'
import { maxUdpClients, type Target } from './datapath.js'

/**
 * One address that sent datagrams, and the connected socket that stands for it at the endpoint
 * (US50): replies find their way back because only the endpoint can send to that socket.
 */
export class UdpClient {
  readonly key: string
  readonly address: string
  readonly port: number
  readonly target: Target
  readonly startedAt: number
  usedAt: number
  bytesToEndpoint = 0
  bytesToClient = 0
  readonly #socket: Socket
  /** Datagrams that came before the socket was connected; undefined afterwards. */
  #early: Buffer[] | undefined = []
  readonly #ended: (client: UdpClient, reason: string) => void
  isEnded = false

  constructor(options: UdpClientOptions) {
    this.key = options.key
    this.address = options.address
    this.port = options.port
    this.target = options.target
    this.startedAt = this.usedAt = options.now
    this.#ended = options.ended
    this.#socket = createLiteralSocket(options.target.ip)
    this.#socket.on('message', (datagram) => {
      this.bytesToClient += datagram.length
      options.reply(this, datagram)
    })
    // ECONNREFUSED is how a dead endpoint shows: the next datagram finds another one (US53).
    this.#socket.on('error', (error: NodeJS.ErrnoException) => this.end(error.code ?? 'error'))
    this.#socket.connect(options.target.port, options.target.ip, () => this.#connected())
  }

  send(datagram: Buffer): void {
    this.bytesToEndpoint += datagram.length
    if (!this.#early) this.#socket.send(datagram)
    else if (this.#early.length < maxEarly) this.#early.push(datagram)
  }

  end(reason: string): void {
    if (this.isEnded) return
    this.isEnded = true
    this.#socket.close()
    this.#ended(this, reason)
  }

  #connected(): void {
    const early = this.#early ?? []
    this.#early = undefined
    if (this.isEnded) return
    for (const datagram of early) this.#socket.send(datagram)
  }
}

export interface UdpClientOptions {
  /** Unique among the clients of all listeners of one data path. */
  readonly key: string
  readonly address: string
  readonly port: number
  readonly target: Target
  readonly now: number
  readonly reply: (client: UdpClient, datagram: Buffer) => void
  readonly ended: (client: UdpClient, reason: string) => void
}

/**
 * The clients of all UDP listeners of one data path, in order of last use, so that both the
 * idle ones and the one to give up when the table is full are at its front.
 */
export class UdpClientTable {
  readonly #now: () => number
  readonly #capacity: number
  readonly #clients = new Map<string, UdpClient>()
  #timer: NodeJS.Timeout | undefined
  #idleMs = Infinity

  constructor(now: () => number, capacity = maxUdpClients) {
    this.#now = now
    this.#capacity = capacity
  }

  get size(): number {
    return this.#clients.size
  }

  find(key: string): UdpClient | undefined {
    return this.#clients.get(key)
  }

  add(client: UdpClient, idleMs: number): void {
    while (this.#clients.size >= this.#capacity) if (!this.evictOldest()) break
    this.#clients.set(client.key, client)
    this.#idleMs = idleMs
    this.#timer ??= setTimeout(() => this.#sweep(), idleMs)
  }

  /** A datagram went by, in either direction (US51). */
  touch(client: UdpClient): void {
    client.usedAt = this.#now()
    if (this.#clients.size === 1 || client.isEnded) return
    this.#clients.delete(client.key)
    this.#clients.set(client.key, client)
  }

  remove(client: UdpClient): void {
    this.#clients.delete(client.key)
    if (this.#clients.size > 0) return
    clearTimeout(this.#timer)
    this.#timer = undefined
  }

  evictOldest(): boolean {
    for (const client of this.#clients.values()) {
      client.end('evicted')
      return true
    }
    return false
  }

  #sweep(): void {
    this.#timer = undefined
    const now = this.#now()
    for (const client of this.#clients.values()) {
      const left = this.#idleMs - (now - client.usedAt)
      if (left > 0) {
        this.#timer = setTimeout(() => this.#sweep(), Math.max(left, shortestSweepMs))
        return
      }
      client.end('ok')
    }
  }
}

/** A socket for addresses only: node:dgram would otherwise ask the resolver for each datagram. */
export function createLiteralSocket(ip: string): Socket {
  const family = ip.includes(':') ? 6 : 4
  return createSocket({
    type: family === 6 ? 'udp6' : 'udp4',
    ipv6Only: family === 6,
    recvBufferSize: socketBufferBytes,
    sendBufferSize: socketBufferBytes,
    lookup: (host, _options, done) => done(null, host, family),
  })
}

const maxEarly = 64
const shortestSweepMs = 20
/** Room for a burst; the kernel caps it at net.core.{r,w}mem_max. */
const socketBufferBytes = 1 << 20
