import { roomPatienceMs, type Target } from './data-path.js'

/** A client of a Service whose endpoints have all connections that they may have. */
export interface WaitingClient {
  /** The endpoints that it has tried in vain. */
  readonly tried: readonly Target[]
  /** When it has waited enough; undefined before it waits. */
  patientUntil: number | undefined
  /** Called when there is room, or when it has waited enough. */
  goOn(): void
}

/**
 * Clients that wait until an endpoint has fewer connections. Who came first goes first: if new
 * clients went before them, some would wait in vain while all others get their turn at once.
 */
export class WaitingClients {
  readonly #now: () => number
  readonly #timers = new Map<WaitingClient, NodeJS.Timeout>()

  constructor(now: () => number) {
    this.#now = now
  }

  /** False if the client has waited enough. */
  enter(client: WaitingClient): boolean {
    const now = this.#now()
    client.patientUntil ??= now + roomPatienceMs
    if (now >= client.patientUntil) return false
    this.#timers.set(
      client,
      setTimeout(() => this.#call(client), client.patientUntil - now),
    )
    return true
  }

  leave(client: WaitingClient): void {
    clearTimeout(this.#timers.get(client))
    this.#timers.delete(client)
  }

  /** Calls those that find room, until there is none. Each takes its place while it is called. */
  admit(isFull: (tried: readonly Target[]) => boolean): void {
    for (const client of this.#timers.keys()) {
      if (isFull([])) return
      if (!isFull(client.tried)) this.#call(client)
    }
  }

  #call(client: WaitingClient): void {
    this.leave(client)
    client.goOn()
  }
}
