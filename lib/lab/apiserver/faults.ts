import type { ServerResponse } from 'node:http'
import { cuttingWriter, drippingWriter, plainWriter, type BodyWriter } from './body-writer.js'
import { ApiError } from './status.js'
import type { VersionedStore } from './store.js'

export type Verb =
  | 'get'
  | 'list'
  | 'watch'
  | 'create'
  | 'update'
  | 'patch'
  | 'delete'
  | 'deletecollection'

/** What goes wrong with a request. */
export type FaultEffect =
  | {
      readonly answer: 401 | 403 | 404 | 410 | 429 | 500 | 503
      readonly retryAfterSeconds?: number
    }
  /** Accepts the request and never answers. */
  | { readonly hang: true }
  /** Sends half of the answer, or of the first event, and breaks the connection. */
  | { readonly cut: true }
  | { readonly drip: { readonly bytes: number; readonly everyMs: number } }

export interface Fault {
  /** All verbs when absent. */
  readonly verbs?: readonly Verb[]
  /** Plural names; all resources when absent. */
  readonly resources?: readonly string[]
  /** The number of requests that get the fault; when absent, all until it is cleared. */
  readonly times?: number
  readonly effect: FaultEffect
}

/** A running watch, with the ways to disturb it. */
export interface OpenWatch {
  readonly resource: string
  /** Ends the answer in order. */
  end(): void
  /** Sends half an event and breaks the connection. */
  cut(): void
  /** Sends an ERROR event and ends. */
  fail(error: ApiError): void
}

const reasons: Readonly<Record<number, string>> = {
  401: 'Unauthorized',
  403: 'Forbidden',
  404: 'NotFound',
  410: 'Expired',
  429: 'TooManyRequests',
  500: 'InternalError',
  503: 'ServiceUnavailable',
}

/** The switches with which tests and the playground make the server misbehave. */
export class Faults {
  readonly watches = new Set<OpenWatch>()
  readonly #store: VersionedStore
  readonly #active = new Map<Fault, { remaining: number }>()

  constructor(store: VersionedStore) {
    this.#store = store
  }

  /** Lets matching requests fail, until the returned function is called or `times` is used up. */
  inject(fault: Fault): () => void {
    this.#active.set(fault, { remaining: fault.times ?? Infinity })
    return () => void this.#active.delete(fault)
  }

  clear(): void {
    this.#active.clear()
  }

  /** The effect for a request, counted as used. */
  take(verb: Verb, resource: string): FaultEffect | undefined {
    for (const [fault, state] of this.#active) {
      if (fault.verbs?.includes(verb) === false) continue
      if (fault.resources?.includes(resource) === false) continue
      state.remaining--
      if (state.remaining <= 0) this.#active.delete(fault)
      return fault.effect
    }
    return undefined
  }

  /** Ends every watch in order, as a server does before a restart. */
  dropWatches(resource?: string): void {
    for (const watch of this.#matching(resource)) watch.end()
  }

  /** Breaks every watch in the middle of an event. */
  cutWatches(resource?: string): void {
    for (const watch of this.#matching(resource)) watch.cut()
  }

  /** Sends every watch an ERROR event with that code. */
  failWatches(code: 410 | 500, resource?: string): void {
    for (const watch of this.#matching(resource)) watch.fail(faultError(code))
  }

  /** Forgets the history: resuming a watch from before now is answered with 410. */
  compact(): void {
    this.#store.compact()
  }

  /** As after a restored backup: all watches end, and old versions are invalid. */
  restart(): void {
    this.#store.renumber()
    this.dropWatches()
  }

  #matching(resource: string | undefined): readonly OpenWatch[] {
    return [...this.watches].filter((each) => resource === undefined || each.resource === resource)
  }
}

export function faultError(code: number): ApiError {
  const reason = reasons[code] ?? 'Unknown'
  return new ApiError(code, reason, `injected fault: ${code} ${reason}`)
}

export function bodyWriterOf(
  response: ServerResponse,
  effect: FaultEffect | undefined,
): BodyWriter {
  if (effect !== undefined && 'cut' in effect) return cuttingWriter(response)
  if (effect !== undefined && 'drip' in effect) return drippingWriter(response, effect.drip)
  return plainWriter(response)
}
