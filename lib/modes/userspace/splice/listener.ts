import type { ListenerSpec } from '../datapath.js'
import type { ListenerCounts } from '../traffic.js'

/** What the data path asks of its two kinds of listeners. */
export interface Listener {
  listen(): Promise<number>
  update(spec: ListenerSpec): void
  /** Stops listening; what is under way may go on. */
  stop(): void
  /** Ends what is still under way. */
  cut(): void
  /** Resolves when nothing is under way any more. */
  readonly idle: Promise<void>
  takeCounts(): ListenerCounts | undefined
}
