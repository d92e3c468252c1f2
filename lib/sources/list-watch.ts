import { messageOf, SourceError } from '../errors.js'
import { asArray, asInteger, asObject, asString } from '../state/json.js'
import { identityOf } from '../state/parse-object.js'
import { readJson, type ApiAnswer, type ApiClient } from './api-client.js'
import { readJsonLines } from './json-lines.js'
import type { ObjectKind, ObjectSink } from './source.js'

/** Which objects to follow. */
export interface Selection {
  readonly kind: ObjectKind
  /** `/api/v1/services` */
  readonly path: string
  readonly labelSelector?: string
  readonly fieldSelector?: string
  /** The server may lack this kind or forbid to read it. Then there are no such objects. */
  readonly isOptional?: boolean
}

export interface ListWatchDeps {
  readonly client: ApiClient
  readonly sleep: (ms: number, signal: AbortSignal) => Promise<void>
  readonly random: () => number
  readonly now: () => number
  readonly timing: ListWatchTiming
}

export interface ListWatchTiming {
  /** Small, because parsing a page blocks the connections of clients (userspace mode). */
  readonly pageSize: number
  readonly headTimeoutMs: number
  /** Servers send bookmarks about every minute. A longer silence means a dead connection. */
  readonly idleTimeoutMs: number
  /** A page that takes longer counts as failed. */
  readonly pageTimeoutMs: number
  readonly firstRetryMs: number
  /** While nothing listens at the address: attempts cost the server nothing. */
  readonly longestConnectRetryMs: number
  /** While the server answers with errors: attempts add to its load. */
  readonly longestErrorRetryMs: number
  /** Time between two attempts to list an optional kind that is absent. */
  readonly absentRetryMs: number
}

export const defaultTiming: ListWatchTiming = {
  pageSize: 250,
  headTimeoutMs: 30_000,
  idleTimeoutMs: 150_000,
  pageTimeoutMs: 120_000,
  firstRetryMs: 200,
  longestConnectRetryMs: 5_000,
  longestErrorRetryMs: 30_000,
  absentRetryMs: 300_000,
}

/** The server has refused a list or a watch. */
class Refusal extends SourceError {
  readonly status: number
  readonly retryAfterMs: number

  constructor(message: string, options: { status: number; retryAfterMs?: number }) {
    super(message)
    this.status = options.status
    this.retryAfterMs = options.retryAfterMs ?? 0
  }
}

const gone = 410

/**
 * The version is newer than the server's own: the server was restored from a backup, or replaced.
 * It may never reach this version, so a new list is needed.
 */
const isVersionTooNew = (error: unknown) =>
  error instanceof Refusal &&
  error.status === 504 &&
  /too large resource version/i.test(error.message)

/** A watch that lasted this long was successful, even without an event. */
const successfulWatchMs = 1000

/**
 * Keeps a sink up to date with one resource until the signal: a list in pages, then a watch from the
 * version of the list. The watch is resumed after every interruption. When the server no longer has
 * the version, there is a new list. Failures are reported and retried. A list that fails removes no
 * object (R01).
 */
export class ListWatch {
  readonly #selection: Selection
  readonly #deps: ListWatchDeps
  readonly #sink: ObjectSink
  readonly #backoff: Backoff
  /** The objects that the sink has, as `namespace/name`. */
  #known = new Set<string>()
  /** The watch resumes from here; undefined before a list and after a 410. */
  #version: string | undefined
  #pageSize: number

  constructor(selection: Selection, deps: ListWatchDeps, sink: ObjectSink) {
    this.#selection = selection
    this.#deps = deps
    this.#sink = sink
    this.#backoff = new Backoff(deps.timing.firstRetryMs, deps.random)
    this.#pageSize = deps.timing.pageSize
  }

  /** Runs until the signal. */
  async run(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      try {
        if (this.#version === undefined) await this.#list(signal)
        else await this.#watch(this.#version, signal)
      } catch (error) {
        if (isAborted(signal)) return
        await this.#recover(error, signal)
      }
    }
  }

  async #recover(error: unknown, signal: AbortSignal): Promise<void> {
    const { timing, sleep } = this.#deps
    const { kind, isOptional } = this.#selection
    const status = error instanceof Refusal ? error.status : 0
    if (isOptional === true && (status === 404 || status === 403) && this.#version === undefined) {
      if (status === 403) this.#fail(error)
      this.#sink.synced(kind)
      await sleep(timing.absentRetryMs, signal)
      return
    }
    const longest = status === 0 ? timing.longestConnectRetryMs : timing.longestErrorRetryMs
    const wait = this.#backoff.next(longest)
    if (status === gone) {
      // A list in pages took too long for the server, so the next list is one page.
      if (this.#version === undefined) this.#pageSize = 0
      this.#version = undefined
    } else {
      if (isVersionTooNew(error)) this.#version = undefined
      this.#fail(error)
    }
    await sleep(Math.max(wait, error instanceof Refusal ? error.retryAfterMs : 0), signal)
  }

  async #list(signal: AbortSignal): Promise<void> {
    const seen = new Set<string>()
    let next: string | undefined
    let version: string | undefined
    do {
      const answer = await this.#request(signal, {
        ...(this.#pageSize > 0 ? { limit: String(this.#pageSize) } : {}),
        ...(next === undefined ? {} : { continue: next }),
      })
      const page = asObject(await readJson(answer.body))
      const metadata = asObject(page?.['metadata'])
      const items = asArray(page?.['items'] ?? [])
      version = asString(metadata?.['resourceVersion'])
      if (items === undefined || version === undefined) {
        throw new SourceError(`list ${this.#selection.path}: the answer is not a list of objects`)
      }
      for (const item of items) this.#upsert(item, seen)
      next = asString(metadata?.['continue']) || undefined
    } while (next !== undefined)
    // The list is complete only now, so objects that are not in it are gone.
    for (const key of this.#known) {
      if (!seen.has(key)) this.#remove(key)
    }
    this.#known = seen
    this.#version = version
    this.#pageSize = this.#deps.timing.pageSize
    this.#sink.synced(this.#selection.kind)
  }

  async #watch(version: string, signal: AbortSignal): Promise<void> {
    const answer = await this.#request(signal, {
      watch: 'true',
      resourceVersion: version,
      allowWatchBookmarks: 'true',
      // Five to ten minutes, so that the watches of many nodes do not end at the same time.
      timeoutSeconds: String(Math.floor(300 * (1 + this.#deps.random()))),
    })
    const startedAt = this.#deps.now()
    try {
      for await (const line of readJsonLines(answer.body)) {
        this.#take(asObject(line))
        this.#backoff.reset()
      }
    } finally {
      if (this.#deps.now() - startedAt >= successfulWatchMs) this.#backoff.reset()
    }
    // A server may end every watch at once. The pause avoids a busy loop.
    if (this.#deps.now() - startedAt < successfulWatchMs) {
      await this.#deps.sleep(this.#backoff.next(this.#deps.timing.longestErrorRetryMs), signal)
    }
  }

  #take(event: Readonly<Record<string, unknown>> | undefined): void {
    const object = asObject(event?.['object'])
    const type = event?.['type']
    if (type === 'ERROR') {
      const status = asInteger(object?.['code'], 100, 599) ?? 500
      const message = asString(object?.['message']) ?? 'no reason given'
      throw new Refusal(`watch ${this.#selection.path}: ${message}`, { status })
    }
    if (type === 'ADDED' || type === 'MODIFIED') this.#upsert(object, this.#known)
    else if (type === 'DELETED') this.#remove(keyOf(object))
    else if (type !== 'BOOKMARK') {
      throw new SourceError(
        `watch ${this.#selection.path}: the server sent an event of unknown type`,
      )
    }
    const version = asString(asObject(object?.['metadata'])?.['resourceVersion'])
    if (version !== undefined && version !== '') this.#version = version
  }

  async #request(signal: AbortSignal, query: Readonly<Record<string, string>>) {
    const { client, timing } = this.#deps
    const { path, labelSelector, fieldSelector } = this.#selection
    const answer: ApiAnswer = await client.send(
      {
        path,
        query: {
          ...query,
          ...(labelSelector === undefined ? {} : { labelSelector }),
          ...(fieldSelector === undefined ? {} : { fieldSelector }),
        },
        headTimeoutMs: timing.headTimeoutMs,
        idleTimeoutMs: timing.idleTimeoutMs,
        ...(query['watch'] === undefined ? { totalTimeoutMs: timing.pageTimeoutMs } : {}),
      },
      signal,
    )
    if (answer.ok) return answer
    const verb = query['watch'] === undefined ? 'list' : 'watch'
    throw new Refusal(`${verb} ${client.server}${path}: ${answer.status} ${answer.message}`, answer)
  }

  /** One bad object must not stop the stream of the others. */
  #upsert(raw: unknown, keys: Set<string>): void {
    const key = keyOf(raw)
    keys.add(key)
    this.#known.add(key)
    try {
      this.#sink.upsert(this.#selection.kind, raw)
    } catch (error) {
      this.#sink.failed(`take ${this.#selection.kind} ${key}: ${messageOf(error)}`)
    }
  }

  #remove(key: string): void {
    const slash = key.indexOf('/')
    this.#known.delete(key)
    this.#sink.remove(this.#selection.kind, key.slice(0, slash), key.slice(slash + 1))
  }

  #fail(error: unknown): void {
    const text = messageOf(error)
    this.#sink.failed(
      error instanceof SourceError ? text : `follow ${this.#selection.path}: ${text}`,
    )
  }
}

function keyOf(raw: unknown): string {
  const { namespace, name } = identityOf(raw)
  return `${namespace}/${name}`
}

/** A function, because the compiler takes `signal.aborted` for unchanged within the loop. */
function isAborted(signal: AbortSignal): boolean {
  return signal.aborted
}

/** Waiting times that double after each failure. Each is between half and all of its size. */
class Backoff {
  readonly #firstMs: number
  readonly #random: () => number
  #failures = 0

  constructor(firstMs: number, random: () => number) {
    this.#firstMs = firstMs
    this.#random = random
  }

  /** How long to wait after one more failure. */
  next(longestMs: number): number {
    const full = Math.min(longestMs, this.#firstMs * 2 ** Math.min(this.#failures, 20))
    this.#failures++
    return full * (0.5 + this.#random() / 2)
  }

  reset(): void {
    this.#failures = 0
  }
}
