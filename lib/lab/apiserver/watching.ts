import { longestTimerMs } from '../../async.js'
import type { ApiCall, BodyWriter } from './api-call.js'
import type { OpenWatch } from './disturbance.js'
import type { KubeObject } from './object.js'
import { parseVersion, viewOf, type View } from './reading.js'
import type { Registry } from './registry.js'
import type { Target } from './target.js'
import { apiVersionOf, collectionOf, shownAs } from './resources.js'
import { badRequest, expired, versionTooLarge, type ApiError } from './status.js'
import type { EventType, StoreEvent } from './store.js'
import { partialOf, tableOf } from './table.js'

export interface WatchDeps {
  readonly registry: Registry
  /** Those that run. */
  readonly watches: Set<OpenWatch>
  readonly texts: EventTexts
  readonly bookmarkEveryMs: number
}

/** A client this far behind is disconnected, as by the real server, to limit the memory. */
const longestBacklog = 64 * 1024 * 1024

const initialEventsEnd = { 'k8s.io/initial-events-end': 'true' }

/** Streams changes until the client leaves, the time is up or a fault ends the watch. */
export function serveWatch(call: ApiCall, target: Target, deps: WatchDeps): void {
  const start = parseStart(call.query)
  const view = viewOf(call, target)
  const body = call.open(200, 'application/json')
  call.response.flushHeaders()
  const stream = new WatchStream(call, { body, view, target, deps })
  const { store } = deps.registry
  const collection = collectionOf(target.kind)
  const missed = start.version === undefined ? undefined : store.since(collection, start.version)
  if (start.version !== undefined && missed === undefined) {
    stream.fail(expired(`too old resource version: ${start.version} (${store.version})`))
    return
  }
  if (start.version !== undefined && start.version > store.version) {
    stream.fail(versionTooLarge(start.version, store.version))
    return
  }
  if (start.withState) {
    for (const object of store.list(collection)) {
      if (view.matches(object)) stream.emit('ADDED', object)
    }
  }
  for (const event of missed ?? []) stream.pass(event)
  if (start.marksEnd) stream.bookmark(initialEventsEnd)
  stream.follow(start)
}

interface Start {
  /** Resume after this version; undefined: from now on. */
  readonly version: number | undefined
  /** All present objects come first, as ADDED. */
  readonly withState: boolean
  /** A bookmark tells where the present objects end. */
  readonly marksEnd: boolean
  readonly bookmarks: boolean
  readonly timeoutMs: number
}

function parseStart(query: URLSearchParams): Start {
  const text = query.get('resourceVersion') ?? ''
  const sendsInitial = query.get('sendInitialEvents')
  const match = query.get('resourceVersionMatch') ?? ''
  const bookmarks = query.get('allowWatchBookmarks') === 'true'
  if (sendsInitial !== null && match !== 'NotOlderThan') {
    throw badRequest('sendInitialEvents requires setting resourceVersionMatch to NotOlderThan')
  }
  if (sendsInitial === null && match !== '') {
    throw badRequest(
      'resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided',
    )
  }
  const version = text === '' ? 0 : parseVersion(text)
  const withState = sendsInitial === 'true' || (sendsInitial === null && version === 0)
  const seconds = Number(query.get('timeoutSeconds') ?? 0)
  return {
    version: withState || version === 0 ? undefined : version,
    withState,
    marksEnd: sendsInitial === 'true' && bookmarks,
    bookmarks,
    // The real server's own limit is a random time from 30 minutes to an hour.
    timeoutMs:
      seconds > 0 ? Math.min(seconds * 1000, longestTimerMs) : 1_800_000 * (1 + Math.random()),
  }
}

type WatchType = EventType | 'BOOKMARK'

class WatchStream implements OpenWatch {
  readonly resource: string
  readonly #call: ApiCall
  readonly #body: BodyWriter
  readonly #view: View
  readonly #target: Target
  readonly #deps: WatchDeps
  #sentColumns = false
  #stop = (): void => undefined

  constructor(
    call: ApiCall,
    parts: { body: BodyWriter; view: View; target: Target; deps: WatchDeps },
  ) {
    this.resource = parts.target.kind.plural
    this.#call = call
    this.#body = parts.body
    this.#view = parts.view
    this.#target = parts.target
    this.#deps = parts.deps
  }

  /** Passes on all later changes. */
  follow(start: Start): void {
    const { registry, watches, bookmarkEveryMs } = this.#deps
    const unsubscribe = registry.store.subscribe(collectionOf(this.#target.kind), (event) =>
      this.pass(event),
    )
    const timeout = setTimeout(() => {
      if (start.bookmarks) this.bookmark()
      this.end()
    }, start.timeoutMs)
    const bookmarks = start.bookmarks
      ? setInterval(() => this.bookmark(), bookmarkEveryMs)
      : undefined
    watches.add(this)
    this.#stop = () => {
      unsubscribe()
      clearTimeout(timeout)
      clearInterval(bookmarks)
      watches.delete(this)
    }
    this.#call.response.once('close', () => this.#stop())
  }

  /** A change as this client's selectors see it: leaving the selection looks like a deletion. */
  pass(event: StoreEvent): void {
    const isIn = event.type !== 'DELETED' && this.#view.matches(event.object)
    const wasIn = event.previous !== undefined && this.#view.matches(event.previous)
    if (isIn) this.emit(wasIn ? 'MODIFIED' : 'ADDED', event.object)
    else if (wasIn) this.emit('DELETED', event.object)
  }

  emit(type: WatchType, object: KubeObject): void {
    this.#line(
      this.#view.rendering === 'object'
        ? this.#deps.texts(type, shownAs(this.#target.kind, object))
        : this.#rendered(type, object),
    )
  }

  bookmark(annotations: Readonly<Record<string, string>> = {}): void {
    const { kind } = this.#target
    const resourceVersion = String(this.#deps.registry.store.version)
    const metadata = { name: '', resourceVersion, annotations }
    this.emit('BOOKMARK', { kind: kind.kind, apiVersion: apiVersionOf(kind), metadata })
  }

  end(): void {
    // This comes before the connection is closed, so that no change is written after the end.
    this.#stop()
    this.#body.end()
  }

  cut(): void {
    this.#stop()
    this.#call.response.write('{"type":"MODIFIED","object":{"kind":"', () =>
      this.#call.response.destroy(),
    )
  }

  fail(error: ApiError): void {
    this.#line(JSON.stringify({ type: 'ERROR', object: error.status }))
    this.end()
  }

  #rendered(type: WatchType, object: KubeObject): string {
    if (this.#view.rendering === 'metadata') {
      return JSON.stringify({ type, object: partialOf(object) })
    }
    const table = tableOf([object], {
      columns: this.#target.kind.columns,
      rowObject: this.#view.rowObject,
      now: this.#deps.registry.now(),
      withColumns: !this.#sentColumns,
      listMeta: { resourceVersion: object.metadata.resourceVersion },
    })
    this.#sentColumns = true
    return JSON.stringify({ type, object: table })
  }

  #line(text: string): void {
    this.#body.write(`${text}\n`)
    if (this.#body.backlog > longestBacklog) this.#call.response.destroy()
  }
}

export type EventTexts = (type: WatchType, object: KubeObject) => string

/** The text of the latest event, made once for all watchers. */
export function eventTexts(): EventTexts {
  let latest: { type: WatchType; object: KubeObject; text: string } | undefined
  return (type, object) => {
    if (latest?.object !== object || latest.type !== type) {
      latest = { type, object, text: JSON.stringify({ type, object }) }
    }
    return latest.text
  }
}
