import { afterReading, longestTimerMs } from '../../../async.js'
import { maxUdpClients } from './data-path.js'
import { RecencyList, type Recent } from './recency-list.js'

/** A client as the table needs it. */
export interface TableClient<T> extends Recent<T> {
  usedAt: number
  /** The client has sent something, and its endpoint has not answered since. */
  awaitsReply: boolean
  end(reason: string): void
}

/**
 * The clients of all UDP listeners of one worker. Their number is bounded, and idle ones are
 * forgotten (US51). A client that waits for an answer is kept longer: the original lost every
 * answer that took more than the idle time. Each list is in order of last use, so the clients
 * that are due are at its front.
 */
export class UdpClientTable<T extends TableClient<T>> {
  readonly #now: () => number
  readonly #capacity: number
  readonly #waiting = new RecencyList<T>()
  readonly #answered = new RecencyList<T>()
  #cancelSweep: (() => void) | undefined
  #dueAt = 0
  #idleMs = 0

  constructor(now: () => number, capacity = maxUdpClients) {
    this.#now = now
    this.#capacity = capacity
  }

  get size(): number {
    return this.#waiting.size + this.#answered.size
  }

  /** Adds a client that has just sent something. */
  add(client: T, idleMs: number): void {
    while (this.size >= this.#capacity) if (!this.evictOldest()) break
    client.awaitsReply = true
    this.#waiting.add(client)
    this.#idleMs = idleMs
    if (!this.#cancelSweep) this.#arm(idleMs)
  }

  asked(client: T, now = this.#now()): void {
    this.#use(client, now, true)
  }

  answered(client: T, now = this.#now()): void {
    this.#use(client, now, false)
  }

  remove(client: T): void {
    this.#listOf(client).remove(client)
    if (this.size > 0) return
    this.#cancelSweep?.()
    this.#cancelSweep = undefined
  }

  /** Ends the client that was silent longest; false when there is none. */
  evictOldest(): boolean {
    const [one, other] = [this.#waiting.oldest, this.#answered.oldest]
    const oldest = one && other ? (one.usedAt < other.usedAt ? one : other) : (one ?? other)
    oldest?.end('evicted')
    return oldest !== undefined
  }

  #use(client: T, now: number, awaitsReply: boolean): void {
    client.usedAt = now
    if (client.awaitsReply === awaitsReply) {
      this.#listOf(client).use(client)
      return
    }
    this.#listOf(client).remove(client)
    client.awaitsReply = awaitsReply
    this.#listOf(client).add(client)
    // An answered client is due sooner than the timer may be set to.
    if (!awaitsReply && this.#dueAt > now + this.#idleMs) this.#arm(this.#idleMs)
  }

  #listOf(client: T): RecencyList<T> {
    return client.awaitsReply ? this.#waiting : this.#answered
  }

  #arm(delayMs: number): void {
    this.#cancelSweep?.()
    this.#dueAt = this.#now() + delayMs
    const waitMs = Math.min(Math.max(delayMs, shortestSweepMs), longestTimerMs)
    this.#cancelSweep = afterReading(waitMs, () => this.#sweep())
  }

  #sweep(): void {
    this.#cancelSweep = undefined
    const now = this.#now()
    const patienceMs = Math.max(this.#idleMs, replyPatienceMs)
    const left = Math.min(
      expire(this.#answered, now - this.#idleMs),
      expire(this.#waiting, now - patienceMs),
    )
    if (left < Infinity) this.#arm(left)
  }
}

/** Ends the clients that were last used at `before` or earlier. Returns the time until the next. */
function expire<T extends TableClient<T>>(list: RecencyList<T>, before: number): number {
  for (let client = list.oldest; client; client = list.oldest) {
    const left = client.usedAt - before
    if (left > 0) return left
    client.end('ok')
  }
  return Infinity
}

/** A client that waits for an answer is kept this long. DNS resolvers wait as long. */
const replyPatienceMs = 5000
const shortestSweepMs = 20
