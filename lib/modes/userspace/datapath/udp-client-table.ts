import { afterReading, longestTimerMs } from '../../../async.js'
import { maxUdpClients } from './data-path.js'
import { mostTimesLeft } from './descriptors.js'
import { RecencyList, type Recent } from './recency-list.js'

/** A listener, to which clients belong. */
export interface ClientOwner {
  /** How many clients it has. */
  readonly held: number
}

/** A client as the table needs it. */
export interface TableClient extends Recent<TableClient> {
  readonly owner: ClientOwner
  usedAt: number
  /** How many of its datagrams have no answer yet. */
  unanswered: number
  end(reason: string): void
}

/**
 * The clients of all UDP listeners of one worker. Their number is bounded, and idle ones are
 * forgotten (US51). A client that waits for an answer is kept longer: the original lost every
 * answer that took more than the idle time. Programs ask for both families of a name from one
 * socket, so the first answer does not end the wait for the second. Each list is in order of last
 * use, so the clients that are due are at its front.
 */
export class UdpClientTable {
  readonly #now: () => number
  readonly #capacity: number
  readonly #waiting = new RecencyList<TableClient>()
  readonly #answered = new RecencyList<TableClient>()
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

  /** Adds a client that is about to send something. */
  add(client: TableClient, idleMs: number): void {
    while (!this.#hasPlace(client.owner)) if (!this.evictFor(client.owner)) break
    client.unanswered = 0
    this.#answered.add(client)
    this.#idleMs = idleMs
    if (!this.#cancelSweep) this.#arm(idleMs)
  }

  asked(client: TableClient, datagrams: number, now = this.#now()): void {
    this.#use(client, now, client.unanswered + datagrams)
  }

  answered(client: TableClient, datagrams: number, now = this.#now()): void {
    this.#use(client, now, Math.max(client.unanswered - datagrams, 0))
  }

  remove(client: TableClient): void {
    this.#listOf(client).remove(client)
    if (this.size > 0) return
    this.#cancelSweep?.()
    this.#cancelSweep = undefined
  }

  /**
   * Ends the client that was silent longest, so that this listener finds room; false when there is
   * none. A listener with many clients loses one of its own: a flood to one Service must not end the
   * clients of others.
   */
  evictFor(owner: ClientOwner): boolean {
    const hasMany = owner.held * smallestFlood >= this.size
    const oldest = (hasMany ? this.#oldest(owner) : undefined) ?? this.#oldest()
    oldest?.end('evicted')
    return oldest !== undefined
  }

  #oldest(owner?: ClientOwner): TableClient | undefined {
    const [one, other] = [this.#waiting, this.#answered].map((list) => {
      let client = list.oldest
      while (client && owner && client.owner !== owner) client = client.newer
      return client
    })
    return one && other ? (one.usedAt < other.usedAt ? one : other) : (one ?? other)
  }

  /** A listener that has nearly all clients leaves some places to others. */
  #hasPlace({ held }: ClientOwner): boolean {
    const left = this.#capacity - this.size
    return left > 0 && held <= mostTimesLeft * left
  }

  #use(client: TableClient, now: number, unanswered: number): void {
    const before = this.#listOf(client)
    client.usedAt = now
    client.unanswered = unanswered
    const list = this.#listOf(client)
    if (list === before) {
      list.use(client)
      return
    }
    before.remove(client)
    list.add(client)
    // An answered client is due sooner than the timer may be set to.
    if (unanswered === 0 && this.#dueAt > now + this.#idleMs) this.#arm(this.#idleMs)
  }

  #listOf(client: TableClient): RecencyList<TableClient> {
    return client.unanswered > 0 ? this.#waiting : this.#answered
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

/** A listener with this part of all clients, one of sixteen, has many. */
const smallestFlood = 16

/** Ends the clients that were last used at `before` or earlier. Returns the time until the next. */
function expire(list: RecencyList<TableClient>, before: number): number {
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
