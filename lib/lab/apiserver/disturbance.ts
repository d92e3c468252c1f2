import type { ApiCall, WriterOf } from './api-call.js'
import type { ApiError } from './status.js'

export type Verb =
  | 'get'
  | 'list'
  | 'watch'
  | 'create'
  | 'update'
  | 'patch'
  | 'delete'
  | 'deletecollection'

/** What goes wrong with a request. Tests disturb clients so; nothing else does. */
export interface Disturbance {
  /** Takes the place of the answer. */
  readonly answer?: (call: ApiCall) => void
  /** Takes the place of the plain writer. */
  readonly writerOf?: WriterOf
}

export type Disturb = (verb: Verb, resource: string) => Disturbance | undefined

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
