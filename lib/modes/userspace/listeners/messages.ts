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

/** What a worker can be asked to do, and the type of what it does that to. See DataPath. */
export interface Tasks {
  readonly open: ListenerSpec
  readonly update: readonly [key: string, changes: EndpointChanges]
  /** Keys of listeners. */
  readonly close: string
  readonly handOver: string
  readonly descriptors: string
  /** By service port, see OwnFrontends. */
  readonly frontends: readonly [key: string, frontends: readonly Frontend[]]
  /** Addresses. */
  readonly cut: string
  /** Milliseconds. */
  readonly drain: number
}

interface Task<Kind extends keyof Tasks> {
  readonly id: number
  readonly kind: Kind
  readonly items: readonly Tasks[Kind][]
}

export type ToWorker = { [Kind in keyof Tasks]: Task<Kind> }[keyof Tasks]

/** What a task has led to. */
export interface Outcome {
  readonly opened?: readonly { readonly key: string; readonly port: number }[]
  readonly failed?: readonly OpenFailure[]
  readonly descriptors?: readonly HeldDescriptor[]
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
export interface WorkerAnswer extends Outcome {
  readonly id: number
}

/** A message of a worker that answers no question. */
export type WorkerReport =
  | { readonly kind: 'ready'; readonly dataPath: DataPathName; readonly note: string }
  | { readonly kind: 'counts'; readonly counts: readonly ListenerCounts[] }
  | { readonly kind: 'access'; readonly entries: readonly AccessEntry[]; readonly leftOut: number }
  | { readonly kind: 'warning'; readonly message: string; readonly repeated: number }
