import type { ServerResponse } from 'node:http'
import type { BodyWriter } from '../../lib/lab/apiserver/api-call.js'
import type { Disturbance, OpenWatch, Verb } from '../../lib/lab/apiserver/disturbance.js'
import {
  createApiServer,
  type ApiServer,
  type ApiServerOptions,
} from '../../lib/lab/apiserver/server.js'
import { ApiError } from '../../lib/lab/apiserver/status.js'
import type { VersionedStore } from '../../lib/lab/apiserver/store.js'

/** An API server that can misbehave, to test its clients. */
export type FaultyApi = ApiServer & { readonly faults: Faults }

export function createFaultyApi(options: Partial<ApiServerOptions> = {}): FaultyApi {
  const api = createApiServer({
    ...options,
    disturb: (verb, resource) => disturbanceOf(faults.take(verb, resource)),
  })
  const faults = new Faults(api)
  return Object.assign(api, { faults })
}

function disturbanceOf(effect: FaultEffect | undefined): Disturbance | undefined {
  if (effect === undefined) return undefined
  if ('hang' in effect) return { answer: () => undefined }
  if ('cut' in effect) return { writerOf: cuttingWriter }
  if ('drip' in effect) return { writerOf: (response) => drippingWriter(response, effect.drip) }
  const { answer: code, retryAfterSeconds } = effect
  return {
    answer: (call) => {
      if (retryAfterSeconds !== undefined) {
        call.response.setHeader('Retry-After', String(retryAfterSeconds))
      }
      call.sendError(faultError(code))
    },
  }
}

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

const reasons: Readonly<Record<number, string>> = {
  401: 'Unauthorized',
  403: 'Forbidden',
  404: 'NotFound',
  410: 'Expired',
  429: 'TooManyRequests',
  500: 'InternalError',
  503: 'ServiceUnavailable',
}

/** The switches with which tests make the server misbehave. */
export class Faults {
  /** The watches that run. */
  readonly watches: ReadonlySet<OpenWatch>
  readonly #store: VersionedStore
  readonly #active = new Map<Fault, { remaining: number }>()

  constructor({ watches, registry }: ApiServer) {
    this.watches = watches
    this.#store = registry.store
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

function faultError(code: number): ApiError {
  const reason = reasons[code] ?? 'Unknown'
  return new ApiError(code, reason, `injected fault: ${code} ${reason}`)
}

/** Sends half of the first text, then breaks the connection. */
function cuttingWriter(response: ServerResponse): BodyWriter {
  let isCut = false
  return {
    write(text) {
      if (isCut) return
      isCut = true
      const half = text.slice(0, Math.ceil(text.length / 2))
      response.write(half, () => response.destroy())
    },
    end() {
      if (!isCut) response.destroy()
    },
    backlog: 0,
  }
}

/** Sends a few bytes at a time, as a bad network does. */
function drippingWriter(
  response: ServerResponse,
  drip: { readonly bytes: number; readonly everyMs: number },
): BodyWriter {
  let waiting = Buffer.alloc(0)
  let hasEnded = false
  const timer = setInterval(() => {
    if (waiting.length > 0) response.write(waiting.subarray(0, drip.bytes))
    waiting = waiting.subarray(drip.bytes)
    if (waiting.length > 0 || !hasEnded) return
    clearInterval(timer)
    response.end()
  }, drip.everyMs)
  response.once('close', () => clearInterval(timer))
  return {
    write(text) {
      waiting = Buffer.concat([waiting, Buffer.from(text)])
    },
    end() {
      hasEnded = true
    },
    get backlog() {
      return waiting.length
    },
  }
}
