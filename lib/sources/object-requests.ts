import type { ApiAnswer, ApiClient } from './api-client.js'
import type { ListWatchTiming } from './list-watch-timing.js'
import type { ObjectKind } from './source.js'
import { Refusal } from './watch-event.js'

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
  readonly client: Pick<ApiClient, 'send' | 'server'>
  readonly random: () => number
  readonly timing: ListWatchTiming
}

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

  constructor(selection: Selection, deps: RequestDeps) {
    this.#selection = selection
    this.#deps = deps
  }

  /** All objects, or the page of them that the query asks for. */
  list(signal: AbortSignal, query: Query): Promise<Accepted> {
    return this.#send('list', query, this.#deps.timing.pageTimeoutMs, signal)
  }

  /** A watch. `begin` says from where on: from a version, or with all objects first. */
  watch(signal: AbortSignal, begin: Query): Promise<Accepted> {
    const query = {
      watch: 'true',
      ...begin,
      allowWatchBookmarks: 'true',
      // Five to ten minutes, so that the watches of many nodes do not end at the same time.
      timeoutSeconds: String(Math.floor(300 * (1 + this.#deps.random()))),
    }
    return this.#send('watch', query, undefined, signal)
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
