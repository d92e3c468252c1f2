import { RecencyList, type Recent } from './recency-list.js'

interface AffinityRecord extends Recent<AffinityRecord> {
  readonly client: string
  endpoint: string
  usedAt: number
}

/**
 * Which endpoint a client used last (ClientIP affinity, S21). Every use renews the record (US62).
 * All records live equally long, so their order of last use is also that of expiry. New records
 * remove expired ones; there are no timers.
 */
export class AffinityTable {
  ttlMs: number
  readonly #records = new Map<string, AffinityRecord>()
  readonly #order = new RecencyList<AffinityRecord>()

  constructor(ttlMs: number) {
    this.ttlMs = ttlMs
  }

  get size(): number {
    return this.#records.size
  }

  /** The key of the client's endpoint, unless the record has expired. */
  find(client: string, now: number): string | undefined {
    const record = this.#records.get(client)
    return record && now - record.usedAt < this.ttlMs ? record.endpoint : undefined
  }

  remember(client: string, endpoint: string, now: number): void {
    const known = this.#records.get(client)
    if (known) {
      known.endpoint = endpoint
      known.usedAt = now
      this.#order.use(known)
    } else {
      const fresh = { client, endpoint, usedAt: now, older: undefined, newer: undefined }
      this.#records.set(client, fresh)
      this.#order.add(fresh)
    }
    for (let { oldest } = this.#order; oldest; { oldest } = this.#order) {
      const isExpired = now - oldest.usedAt >= this.ttlMs
      if (!isExpired && this.size <= maxClients) break
      this.#remove(oldest)
    }
  }

  /** Drops the client's record, if it is of this endpoint. */
  drop(client: string, endpoint: string): void {
    const record = this.#records.get(client)
    if (record?.endpoint === endpoint) this.#remove(record)
  }

  /** Drops the records of endpoints that left (US65). */
  forget(endpoints: ReadonlySet<string>): void {
    for (const record of this.#records.values()) {
      if (endpoints.has(record.endpoint)) this.#remove(record)
    }
  }

  #remove(record: AffinityRecord): void {
    this.#records.delete(record.client)
    this.#order.remove(record)
  }
}

/** A flood of source addresses takes some 20 MB per listener at most. */
const maxClients = 131_072
