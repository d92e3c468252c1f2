import type { AccessEntry, DataPathName, ListenerSpec } from './datapath.js'
import type { EndpointChanges } from './endpoint-changes.js'
import type { ListenerCounts } from './traffic.js'

/** What crosses between the thread that plans and the threads that copy. Plain values only. */

export interface WorkerSettings {
  readonly dataPath: DataPathName | 'auto'
  readonly passiveHealth: boolean
  readonly accessLog: boolean
  /** See DescriptorBudget. */
  readonly descriptors: SharedArrayBuffer
}

/** JSON of a plain value. */
export type Packed<T> = string & { readonly packs?: T }

export function pack<T>(value: T): Packed<T> {
  return JSON.stringify(value)
}

export function unpack<T>(text: Packed<T>): T {
  return JSON.parse(text) as T
}

/** Listeners to open, to give new endpoints, to close; one message per sync and worker. */
export interface ListenerChanges {
  readonly open: readonly ListenerSpec[]
  readonly update: readonly ListenerSpec[]
  readonly close: readonly string[]
  /** See DataPath. */
  readonly handOver?: readonly string[]
}

/**
 * The same on its way to a worker, as text that is read when its turn has come: objects would all
 * be unpacked at once, and a thousand of them hold up the worker's connections.
 */
export interface PackedChanges {
  readonly open: readonly Packed<ListenerSpec>[]
  readonly update: readonly Packed<readonly [key: string, changes: EndpointChanges]>[]
  readonly close: readonly string[]
  readonly handOver: readonly string[]
}

export type ToWorker =
  | ({ readonly kind: 'change'; readonly id: number } & PackedChanges)
  | { readonly kind: 'descriptors'; readonly id: number; readonly keys: readonly string[] }
  | { readonly kind: 'drain'; readonly id: number; readonly graceMs: number }

/** What became of the listeners to open. */
export interface OpenOutcome {
  readonly opened: readonly { readonly key: string; readonly port: number }[]
  readonly failed: readonly OpenFailure[]
}

/** The number of a listener's socket in this process. */
export interface HeldDescriptor {
  readonly key: string
  readonly descriptor: number
}

export interface OpenFailure {
  readonly key: string
  /** The system's error code, such as EADDRINUSE. */
  readonly code: string
  readonly message: string
}

export type FromWorker =
  | { readonly kind: 'ready'; readonly dataPath: DataPathName; readonly note: string }
  | ({ readonly kind: 'changed'; readonly id: number } & OpenOutcome)
  | {
      readonly kind: 'descriptors'
      readonly id: number
      readonly descriptors: readonly HeldDescriptor[]
    }
  | { readonly kind: 'drained'; readonly id: number }
  | { readonly kind: 'counts'; readonly counts: readonly ListenerCounts[] }
  | { readonly kind: 'access'; readonly entries: readonly AccessEntry[] }
  | { readonly kind: 'warning'; readonly message: string; readonly repeated: number }
