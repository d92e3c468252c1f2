import { messageOf, SourceError } from '../errors.js'
import { asObject, asString } from '../state/json.js'
import { identityOf } from '../state/parse-object.js'
import { readJson } from './answer-body.js'
import { Backoff } from './backoff.js'
import { Silence } from './silence.js'
import { PagedList } from './paged-list.js'
import { ObjectRequests, type RequestDeps, type Selection } from './object-requests.js'
import type { ObjectSink } from './source.js'
import {
  isVersionTooNew,
  ListAgain,
  parseWatchEvent,
  Refusal,
  throwIfOlder,
} from './watch-event.js'

interface ListWatchDeps extends RequestDeps {
  readonly sleep: (ms: number, signal: AbortSignal) => Promise<void>
  /** Whether to ask for all objects at the beginning of a watch before a list is tried. */
  readonly isStreamed: boolean
}

const [badRequest, gone, invalid, tooManyRequests] = [400, 410, 422, 429]

/** After this many refused watches in a row without an event, all objects come in another way. */
const mostRefusals = 5

const reportedTypes = 8

/** After this many watches that were cut while they brought all objects, pages bring them. */
const mostCuts = 2

/** A watch that lasted this long was successful, even without an event. */
const successfulWatchMs = 1000

/**
 * Keeps a sink up to date with one resource until the signal. A watch begins with all objects. A
 * server that refuses this sends a list in pages, and then a watch from the version of the list.
 * The watch is resumed after every interruption. When the server no longer has the version, all
 * objects come again. Failures are reported and retried. A list that fails removes no object (R01).
 */
export class ListWatch {
  readonly #selection: Selection
  readonly #deps: ListWatchDeps
  readonly #requests: ObjectRequests
  readonly #paged: PagedList
  readonly #sink: ObjectSink
  readonly #backoff: Backoff
  /**
   * Lists are expensive and wait by themselves: good events before a bad one reset the other waits.
   */
  readonly #listBackoff: Backoff
  /** Unknown types of events that were reported. */
  readonly #reported = new Set<string>()
  /** The objects that the sink has, as `namespace/name`. */
  #known = new Set<string>()
  /** The watch resumes from here; undefined before a list and after a 410. */
  #version: string | undefined
  /** Whether a watch begins with all objects, which costs the server less than a list. */
  #isStreamed: boolean
  /** The objects of a watch that has not sent all of them yet, as `namespace/name`. */
  #arriving: Set<string> | undefined
  /** How many watches were cut in the middle of all objects. */
  #cuts = 0
  /** Requests that the server has refused since an event came or a list began. */
  #refusals = 0
  /** Whether a watch failed, so that the server may have come back with an older state. */
  #isDoubted = false
  /** Whether the last version expired before it was followed for long. */
  #isExpired = false
  /** The time when all objects had come. */
  #completeAt = 0
  /** Whether a failure was told since the last event of a watch. */
  #hasFailed = false

  constructor(selection: Selection, deps: ListWatchDeps, sink: ObjectSink) {
    this.#selection = selection
    this.#deps = deps
    this.#requests = new ObjectRequests(selection, deps)
    this.#sink = sink
    this.#backoff = new Backoff(deps.timing.firstRetryMs, deps.random)
    this.#listBackoff = new Backoff(deps.timing.firstRetryMs, deps.random)
    this.#paged = new PagedList(selection.path, this.#requests, deps.timing.pageSize)
    this.#isStreamed = deps.isStreamed
  }

  /** Runs until the signal. */
  async run(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      try {
        if (this.#version !== undefined) {
          if (this.#isDoubted) await this.#compareVersion(this.#version, signal)
          await this.#watch({ resourceVersion: this.#version }, signal)
        } else if (this.#isStreamed && this.#refusals < mostRefusals) await this.#stream(signal)
        else await this.#list(signal)
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
    this.#isDoubted = true
    if (isOptional === true && (status === 404 || status === 403) && this.#version === undefined) {
      if (status === 403) this.#fail(error)
      this.#sink.synced(kind)
      await sleep(timing.absentRetryMs, signal)
      return
    }
    const askedMs = error instanceof Refusal ? error.retryAfterMs : 0
    if (status === gone || error instanceof ListAgain || this.#isStuck(error)) {
      // A list in pages took too long for the server, so the next list is one page.
      if (status === gone && this.#version === undefined) this.#paged.inOnePage()
      this.#version = undefined
      this.#refusals = 0
      // A version expires now and then. Only one that expires at once is a failure.
      if (status !== gone || this.#isExpired) this.#fail(error)
      this.#isExpired = status === gone
      await sleep(Math.max(this.#listBackoff.next(timing.longestErrorRetryMs), askedMs), signal)
      return
    }
    const longest = status === 0 ? timing.longestConnectRetryMs : timing.longestErrorRetryMs
    if (isVersionTooNew(error)) this.#version = undefined
    // Some servers send no bookmarks while nothing changes, and that is no failure.
    if (!(error instanceof Silence && error.isServerAlive)) this.#fail(error)
    await sleep(Math.max(this.#backoff.next(longest), askedMs), signal)
  }

  /** Whether the server cannot go on from this version, for any reason. A newer one may work. */
  #isStuck(error: unknown): boolean {
    if (!(error instanceof Refusal) || error.status === tooManyRequests) return false
    if (isVersionTooNew(error)) return false
    const isTooMuch = ++this.#refusals >= mostRefusals || error.status === badRequest
    return isTooMuch && this.#version !== undefined
  }

  /** One watch brings all objects, and then the changes. */
  async #stream(signal: AbortSignal): Promise<void> {
    const { path } = this.#selection
    this.#arriving = new Set()
    try {
      const query = { sendInitialEvents: 'true', resourceVersionMatch: 'NotOlderThan' }
      await this.#watch(query, signal)
      if (this.#version !== undefined) return
      throw new ListAgain(path, 'it ended before all objects had come')
    } catch (error) {
      if (this.#version !== undefined) throw error
      const isUnknown =
        error instanceof Refusal && (error.status === badRequest || error.status === invalid)
      const isIgnored = error instanceof Silence || error instanceof ListAgain
      // Pages go on after a cut, and this watch does not.
      const isCut =
        this.#arriving.size > 0 && !(error instanceof Refusal) && ++this.#cuts >= mostCuts
      // From now on this server is asked for lists, which work everywhere.
      if (isUnknown || isIgnored || isCut) this.#isStreamed = false
      if (isUnknown) return
      if (!(error instanceof Silence && error.isServerAlive)) throw error
      throw new ListAgain(path, 'it did not say which object is the last', { cause: error })
    } finally {
      this.#arriving = undefined
    }
  }

  async #list(signal: AbortSignal): Promise<void> {
    this.#refusals = 0
    const take = (object: unknown, keys: Set<string>) => this.#upsert(object, keys)
    const { seen, version } = await this.#paged.read(signal, take)
    this.#complete(seen, version)
  }

  /** All objects have come, so known objects that are not among them are gone. */
  #complete(seen: Set<string>, version: string): void {
    for (const key of this.#known) {
      if (!seen.has(key)) this.#remove(key)
    }
    this.#known = seen
    this.#version = version
    this.#completeAt = this.#deps.now()
    this.#cuts = 0
    this.#paged.beginAnew()
    this.#isDoubted = false
    this.#sink.synced(this.#selection.kind)
  }

  /**
   * After etcd was restored from a backup, the server may not have reached our version yet. It does
   * not refuse a watch from there, but says nothing until it has. A list of one object tells the
   * server's version, and cannot come from an outdated cache.
   */
  async #compareVersion(version: string, signal: AbortSignal): Promise<void> {
    const { body, what } = await this.#requests.list(signal, { limit: '1' })
    const metadata = asObject(asObject(await readJson(body, what))?.['metadata'])
    throwIfOlder(asString(metadata?.['resourceVersion']), version, this.#selection.path)
    this.#isDoubted = false
  }

  async #watch(begin: Readonly<Record<string, string>>, signal: AbortSignal): Promise<void> {
    const startedAt = this.#deps.now()
    let isEmpty = true
    try {
      for await (const line of this.#requests.watch(signal, begin)) {
        this.#take(line)
        this.#refusals = 0
        this.#backoff.reset()
        isEmpty = false
        if (this.#hasFailed) this.#sink.recovered?.(this.#selection.path)
        this.#hasFailed = false
      }
    } finally {
      const now = this.#deps.now()
      if (now - startedAt >= successfulWatchMs) this.#backoff.reset()
      // Quiet watches end soon, so it is the time since all objects had come that counts.
      if (this.#version !== undefined && now - this.#completeAt >= this.#deps.timing.soundWatchMs) {
        this.#listBackoff.reset()
        this.#isExpired = false
      }
    }
    if (this.#deps.now() - startedAt >= successfulWatchMs) return
    if (isEmpty && this.#version !== undefined) {
      const text = `watch ${this.#selection.path}: it ended at once, without an event`
      throw new Refusal(text, { status: 200 })
    }
    // A server may end every watch at once. The pause avoids a busy loop.
    await this.#deps.sleep(this.#backoff.next(this.#deps.timing.longestErrorRetryMs), signal)
  }

  #take(line: unknown): void {
    const { path } = this.#selection
    const event = parseWatchEvent(line, path)
    if (this.#version !== undefined) throwIfOlder(event.version, this.#version, path)
    const keys = this.#arriving ?? this.#known
    if (event.change === 'upsert') this.#upsert(event.object, keys)
    else if (event.change === 'remove') {
      keys.delete(keyOf(event.object))
      this.#remove(keyOf(event.object))
    }
    if (event.unknownType !== undefined) this.#skipped(event.unknownType)
    if (event.version === undefined) return
    if (this.#arriving === undefined) this.#version = event.version
    else if (event.isLastOfAll) {
      const all = this.#arriving
      this.#arriving = undefined
      this.#complete(all, event.version)
    }
  }

  /** A server can invent types, so only the first few are remembered and reported. */
  #skipped(type: string): void {
    if (this.#reported.has(type) || this.#reported.size >= reportedTypes) return
    this.#reported.add(type)
    const shown = JSON.stringify(type.slice(0, 64))
    this.#sink.failed(
      `watch ${this.#selection.path}: events of the unknown type ${shown} are skipped`,
    )
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
    this.#hasFailed = true
    const text = messageOf(error)
    const what = error instanceof SourceError ? text : `follow ${this.#selection.path}: ${text}`
    const server = this.#deps.client.movedTo()
    const advice =
      server && `; the kubeconfig names ${server} now: restart this program to ask there`
    this.#sink.failed(`${what}${advice ?? ''}`)
  }
}

function keyOf(raw: unknown): string {
  const { namespace, name } = identityOf(raw)
  return `${namespace}/${name}`
}

/** A function, because the compiler takes `signal.aborted` for unchanged within the loop. */
const isAborted = (signal: AbortSignal): boolean => signal.aborted
