import type { ApiAnswer, ApiClient } from './api-client.js'
import type { ListWatchTiming } from './list-watch-timing.js'
import type { ObjectKind } from './source.js'
import { readJsonLines, UnreadableLine } from './json-lines.js'
import { Silence } from './silence.js'
import { ListAgain, Refusal } from './watch-event.js'

/** Which objects to follow. */
export interface Selection {
  readonly kind: ObjectKind
  /** `/api/v1/services` */
  readonly path: string
  readonly labelSelector?: string
  readonly fieldSelector?: string
  /** The server may lack this kind or forbid to read it. Then there are no such objects. */
  readonly isOptional?: boolean
  /** These objects seldom change, and no connection waits for a change. */
  readonly isQuiet?: boolean
}

export interface RequestDeps {
  readonly client: Pick<ApiClient, 'send' | 'server' | 'movedTo'>
  readonly random: () => number
  /** Milliseconds of a clock that nobody can set. */
  readonly now: () => number
  readonly timing: ListWatchTiming
}

/**
 * The least time of a watch after one that was silent. Some proxies hold back what a watch sends
 * until it ends, so the server ends it before it is given up for its silence.
 */
const briefWatchSeconds = 14
const heldBackMs = 1000

type Accepted = Extract<ApiAnswer, { readonly ok: true }>
type Query = Readonly<Record<string, string>>

/** The part of a request that selects objects. */
export function selectorsOf({ labelSelector, fieldSelector }: Selection): Query {
  return {
    ...(labelSelector === undefined ? {} : { labelSelector }),
    ...(fieldSelector === undefined ? {} : { fieldSelector }),
  }
}

/** The requests for one selection of objects. Each throws a Refusal where the server refuses. */
export class ObjectRequests {
  readonly #selection: Selection
  readonly #deps: RequestDeps
  /** Whether a watch was silent, and none since then has sent something before its end. */
  #isBrief = false

  constructor(selection: Selection, deps: RequestDeps) {
    this.#selection = selection
    this.#deps = deps
  }

  /** All objects, or the page of them that the query asks for. */
  list(signal: AbortSignal, query: Query): Promise<Accepted> {
    return this.#send('list', query, this.#deps.timing.pageTimeoutMs, signal)
  }

  /** The events of a watch. `begin` says from where on: from a version, or with all objects first. */
  async *watch(signal: AbortSignal, begin: Query): AsyncIterable<unknown> {
    const { now, random } = this.#deps
    const seconds = this.#isBrief ? briefWatchSeconds : 300
    const query = {
      watch: 'true',
      ...begin,
      allowWatchBookmarks: 'true',
      // Five to ten minutes, so that the watches of many nodes do not end at the same time.
      timeoutSeconds: String(Math.floor(seconds * (1 + random()))),
    }
    let heardAt = Infinity
    try {
      const { body } = await this.#send('watch', query, undefined, signal)
      for await (const line of readJsonLines(body)) {
        heardAt = Math.min(heardAt, now())
        yield line
      }
      // What comes long before the end was not held back.
      if (now() - heardAt >= heldBackMs) this.#isBrief = false
    } catch (cause) {
      this.#isBrief ||= cause instanceof Silence
      if (!(cause instanceof UnreadableLine)) throw cause
      throw new ListAgain(this.#selection.path, cause.message, { cause })
    }
  }

  async #send(
    verb: 'list' | 'watch',
    query: Query,
    totalTimeoutMs: number | undefined,
    signal: AbortSignal,
  ): Promise<Accepted> {
    const { client, timing } = this.#deps
    const { path, isQuiet } = this.#selection
    const answer = await client.send(
      {
        path,
        query: { ...query, ...selectorsOf(this.#selection) },
        headTimeoutMs: timing.headTimeoutMs,
        askAfterMs: timing.askAfterMs,
        idleTimeoutMs: isQuiet === true ? timing.quietIdleTimeoutMs : timing.idleTimeoutMs,
        ...(totalTimeoutMs === undefined ? {} : { totalTimeoutMs }),
      },
      signal,
    )
    if (answer.ok) return answer
    throw new Refusal(`${verb} ${client.server}${path}: ${answer.status} ${answer.message}`, answer)
  }
}
