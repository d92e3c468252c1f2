/**
 * Which endpoint a client used last (ClientIP affinity, S21). Every use renews the record (US62).
 * All records live equally long, so a Map in order of last use is also in order of expiry. New
 * records remove expired ones from its front; there are no timers.
 */
export class AffinityTable {
  readonly #ttlMs: number
  readonly #records = new Map<string, { readonly endpoint: string; readonly usedAt: number }>()

  constructor(ttlMs: number) {
    this.#ttlMs = ttlMs
  }

  get ttlMs(): number {
    return this.#ttlMs
  }

  get size(): number {
    return this.#records.size
  }

  /** The key of the client's endpoint, unless the record has expired. */
  find(client: string, now: number): string | undefined {
    const record = this.#records.get(client)
    return record && now - record.usedAt < this.#ttlMs ? record.endpoint : undefined
  }

  remember(client: string, endpoint: string, now: number): void {
    this.#records.delete(client)
    this.#records.set(client, { endpoint, usedAt: now })
    for (const [oldest, record] of this.#records) {
      const expired = now - record.usedAt >= this.#ttlMs
      if (!expired && this.#records.size <= maxClients) break
      this.#records.delete(oldest)
    }
  }

  /** Drops the client's record, if it is of this endpoint. */
  drop(client: string, endpoint: string): void {
    if (this.#records.get(client)?.endpoint === endpoint) this.#records.delete(client)
  }

  /** Drops the records of endpoints that left (US65). */
  forget(endpoints: ReadonlySet<string>): void {
    for (const [client, record] of this.#records) {
      if (endpoints.has(record.endpoint)) this.#records.delete(client)
    }
  }

  /** The same records under another time-out, which may expire some of them. */
  withTtl(ttlMs: number): AffinityTable {
    const table = new AffinityTable(ttlMs)
    for (const [client, record] of this.#records) table.#records.set(client, record)
    return table
  }
}

/** A flood of source addresses takes some 20 MB per listener at most. */
const maxClients = 131_072
