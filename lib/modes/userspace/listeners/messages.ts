import type {
  AccessEntry,
  DataPathName,
  EndpointChanges,
  ListenerSpec,
} from '../datapath/data-path.js'
import type { Frontend } from '../datapath/own-frontends.js'
import type { ListenerCounts } from '../datapath/traffic.js'

/** Messages between the thread that plans and the worker threads. Plain values only. */

export interface WorkerSettings {
  readonly dataPath: DataPathName | 'auto'
  readonly passiveHealth: boolean
  /** Which connections to report. A sample is small, so that it slows nothing down. */
  readonly accessLog: 'all' | 'sample' | 'none'
  /** See SourceSwitch. */
  readonly sources?: SharedArrayBuffer | undefined
  /** See DescriptorBudget. */
  readonly descriptors: SharedArrayBuffer
}

/** What one worker gets. */
export interface WorkerData extends WorkerSettings {
  /** Those that this worker has, see DescriptorBudget. */
  readonly held: SharedArrayBuffer
}

/** Listeners to close, to hand over (see DataPath), to give new endpoints, and to open. */
export interface ListenerChanges {
  readonly close: readonly string[]
  readonly handOver: readonly string[]
  readonly update: readonly (readonly [key: string, changes: EndpointChanges])[]
  readonly open: readonly ListenerSpec[]
}

export type ToWorker =
  | ({ readonly kind: 'change'; readonly id: number } & ListenerChanges)
  | { readonly kind: 'descriptors'; readonly id: number; readonly keys: readonly string[] }
  | { readonly kind: 'frontends'; readonly id: number; readonly services: ServiceFrontends }
  | { readonly kind: 'cut'; readonly id: number; readonly addresses: readonly string[] }
  | { readonly kind: 'drain'; readonly id: number; readonly graceMs: number }

/** By service port, see OwnFrontends. */
export type ServiceFrontends = readonly (readonly [key: string, frontends: readonly Frontend[]])[]

/** Which listeners could be opened, and which could not. */
export interface OpenOutcome {
  readonly opened: readonly { readonly key: string; readonly port: number }[]
  readonly failed: readonly OpenFailure[]
}

export interface OpenFailure {
  readonly key: string
  /** The system's error code, such as EADDRINUSE. */
  readonly code: string
  readonly message: string
}

/** The number of a listener's socket in this process. */
export interface HeldDescriptor {
  readonly key: string
  readonly descriptor: number
}

/** The answer to the message with the same `id`. */
export type WorkerAnswer =
  | ({ readonly kind: 'changed'; readonly id: number } & OpenOutcome)
  | {
      readonly kind: 'descriptors'
      readonly id: number
      readonly descriptors: readonly HeldDescriptor[]
    }
  | { readonly kind: 'drained' | 'noted'; readonly id: number }

/** A message of a worker that answers no question. */
export type WorkerReport =
  | { readonly kind: 'ready'; readonly dataPath: DataPathName; readonly note: string }
  | { readonly kind: 'counts'; readonly counts: readonly ListenerCounts[] }
  | { readonly kind: 'access'; readonly entries: readonly AccessEntry[]; readonly leftOut: number }
  | { readonly kind: 'warning'; readonly message: string; readonly repeated: number }
