import { messageOf, SourceError } from '../errors.js'
import { asArray, asInteger, asObject, asString } from '../state/json.js'
import { identityOf } from '../state/parse-object.js'
import { readJson, type ApiAnswer, type ApiClient } from './api-client.js'
import { Backoff } from './backoff.js'
import { readJsonLines } from './json-lines.js'
import type { ObjectKind, ObjectSink } from './source.js'

/** Which objects to follow. */
export interface Selection {
  readonly kind: ObjectKind
  /** `/api/v1/services` */
  readonly path: string
  readonly labelSelector?: string
  readonly fieldSelector?: string
  /** The server may not have this kind, or not let us see it; then there simply are none. */
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
  /** Smaller than usual: a page is parsed in one go, and connections of clients wait for that. */
  readonly pageSize: number
  readonly headTimeoutMs: number
  /** Servers send bookmarks about every minute; silence for longer means a dead connection. */
  readonly idleTimeoutMs: number
  /** A page that takes longer comes from a server or over a line that is not worth waiting for. */
  readonly pageTimeoutMs: number
  readonly firstRetryMs: number
  /** While nothing listens there: asking costs the server nothing. */
  readonly longestConnectRetryMs: number
  /** While the server answers with errors: it has enough to do. */
  readonly longestErrorRetryMs: number
  /** How often to look again for an optional kind that is not there. */
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

/** Why a step did not get further, and what follows from that. */
class Setback extends SourceError {
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
 * What a server says whose history ends before ours: it was restored from a backup, or another
 * one took its place. Waiting for it to catch up could take for ever.
 */
const isFromTheFuture = (error: unknown) =>
  error instanceof Setback &&
  error.status === 504 &&
  /too large resource version/i.test(error.message)

/** A watch that lasted this long worked, even if nothing happened in it. */
const lastingMs = 1000

/**
 * Keeps a sink up to date with one resource for as long as the signal lets it: a paged list,
 * then a watch from the list's version, resumed after every interruption, and a new list when
 * the server has forgotten that version. Failures are told and retried; a list that fails never
 * removes anything (R01).
 */
export class ListWatch {
  readonly #selection: Selection
  readonly #deps: ListWatchDeps
  readonly #sink: ObjectSink
  readonly #backoff: Backoff
  /** What the sink was given and not told to remove: `namespace/name`. */
  #known = new Set<string>()
  /** Where the watch goes on; undefined before a list and after a 410. */
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
    const status = error instanceof Setback ? error.status : 0
    if (isOptional === true && (status === 404 || status === 403) && this.#version === undefined) {
      if (status === 403) this.#fail(error)
      this.#sink.synced(kind)
      await sleep(timing.absentRetryMs, signal)
      return
    }
    const longest = status === 0 ? timing.longestConnectRetryMs : timing.longestErrorRetryMs
    const wait = this.#backoff.next(longest)
    if (status === gone) {
      // In the middle of paging the list took too long for the server: try all at once.
      if (this.#version === undefined) this.#pageSize = 0
      this.#version = undefined
    } else {
      if (isFromTheFuture(error)) this.#version = undefined
      this.#fail(error)
    }
    await sleep(Math.max(wait, error instanceof Setback ? error.retryAfterMs : 0), signal)
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
        throw new SourceError(`list ${this.#selection.path}: the answer is no list of objects`)
      }
      for (const item of items) this.#upsert(item, seen)
      next = asString(metadata?.['continue']) || undefined
    } while (next !== undefined)
    // Only now is it certain that what is not among them is gone.
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
      // Five to ten minutes: spreads the reconnects of many nodes over time.
      timeoutSeconds: String(Math.floor(300 * (1 + this.#deps.random()))),
    })
    const startedAt = this.#deps.now()
    try {
      for await (const line of readJsonLines(answer.body)) {
        this.#take(asObject(line))
        this.#backoff.reset()
      }
    } finally {
      if (this.#deps.now() - startedAt >= lastingMs) this.#backoff.reset()
    }
    // A server that ends watches as soon as they begin must not be asked in a tight loop.
    if (this.#deps.now() - startedAt < lastingMs) {
      await this.#deps.sleep(this.#backoff.next(this.#deps.timing.longestErrorRetryMs), signal)
    }
  }

  #take(event: Readonly<Record<string, unknown>> | undefined): void {
    const object = asObject(event?.['object'])
    const type = event?.['type']
    if (type === 'ERROR') {
      const status = asInteger(object?.['code'], 100, 599) ?? 500
      const message = asString(object?.['message']) ?? 'no reason given'
      throw new Setback(`watch ${this.#selection.path}: ${message}`, { status })
    }
    if (type === 'ADDED' || type === 'MODIFIED') this.#upsert(object, this.#known)
    else if (type === 'DELETED') this.#remove(keyOf(object))
    else if (type !== 'BOOKMARK') {
      throw new SourceError(`watch ${this.#selection.path}: an event of unknown type came`)
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
    throw new Setback(`${verb} ${client.server}${path}: ${answer.status} ${answer.message}`, answer)
  }

  /** One bad object must not stop the stream of all the others. */
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

/** A call, so that the compiler does not take the answer of the loop's condition for eternal. */
function isAborted(signal: AbortSignal): boolean {
  return signal.aborted
}
