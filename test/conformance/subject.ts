import type { World } from '../../lib/lab/world/world.js'
import type { CaseSettings } from './case.js'
import type { Manifest } from './objects.js'

/** The changes of objects since the last time. */
export interface Changes {
  readonly upserts: readonly Manifest[]
  readonly removals: readonly Manifest[]
}

/** A proxy under test. It runs inside the node's namespace. */
export interface Subject<Where = World> {
  readonly name: string
  /** Starts with these objects, and resolves when they are in force. */
  start(world: Where, settings: CaseSettings, objects: readonly Manifest[]): Promise<void>
  /**
   * Ends and begins anew with other settings in the same process. The start of a process is a large
   * part of the time of a suite, most of all in User Mode Linux.
   */
  startAnew?(settings: CaseSettings, objects: readonly Manifest[]): Promise<void>
  /** Hands over changes, and resolves when they are in force. */
  apply(changes: Changes): Promise<void>
  /** Ends the process as SIGTERM would; what it left in the kernel stays. */
  stop(): Promise<void>
}
