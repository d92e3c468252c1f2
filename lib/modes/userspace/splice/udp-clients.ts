import { maxUdpClients } from '../datapath.js'
import { RecencyList } from './recency-list.js'
import type { UdpClient } from './udp-client.js'

/** The clients of all UDP listeners of one worker: bounded, and forgotten when idle (US51). */
export class UdpClientTable {
  readonly #now: () => number
  readonly #capacity: number
  readonly #clients = new RecencyList<UdpClient>()
  #timer: NodeJS.Timeout | undefined
  #idleMs = 0

  constructor(now: () => number, capacity = maxUdpClients) {
    this.#now = now
    this.#capacity = capacity
  }

  add(client: UdpClient, idleMs: number): void {
    while (this.#clients.size >= this.#capacity) if (!this.evictOldest()) break
    this.#clients.add(client)
    this.#idleMs = idleMs
    if (!this.#timer) this.#arm(idleMs)
  }

  /** A datagram went by, in either direction. */
  touch(client: UdpClient, now: number): void {
    client.usedAt = now
    this.#clients.use(client)
  }

  remove(client: UdpClient): void {
    this.#clients.remove(client)
  }

  evictOldest(): boolean {
    const { oldest } = this.#clients
    oldest?.owner.end(oldest, 'evicted')
    return oldest !== undefined
  }

  #arm(delayMs: number): void {
    this.#timer = setTimeout(() => this.#sweep(), Math.max(delayMs, shortestSweepMs))
    this.#timer.unref()
  }

  #sweep(): void {
    this.#timer = undefined
    const now = this.#now()
    for (let client = this.#clients.oldest; client; client = this.#clients.oldest) {
      const left = this.#idleMs - (now - client.usedAt)
      if (left > 0) {
        this.#arm(left)
        return
      }
      client.owner.end(client, 'ok')
    }
  }
}

const shortestSweepMs = 20
