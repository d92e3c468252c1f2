import type { DesiredState } from '../state/desired-state.js'
import type { Taken, Tracker } from '../state/tracker.js'
import type { Syncer, SyncReport } from './syncer.js'

/** Is told what a sync does. */
export interface SyncWitness {
  /** A sync is about to run on what was taken. */
  taken(taken: Taken): void
  /** One family is done; `changed` counts the service ports of the batch. */
  synced(report: SyncReport, changed: number): void
}

export interface SyncRoundOptions {
  readonly tracker: Pick<Tracker, 'take'>
  readonly syncer: Pick<Syncer, 'sync'>
  readonly witnesses: readonly SyncWitness[]
  /** The rules of this state are in the kernel. */
  readonly applied: (state: DesiredState) => void
  /** The rules of every family are in the kernel. */
  readonly inForce: () => void
}

/**
 * One sync: what changed goes to the kernel, a family after the other; one that fails leaves the
 * other alone (R06). Returns whether all of it succeeded.
 */
export async function syncRound(options: SyncRoundOptions): Promise<boolean> {
  const { tracker, syncer, witnesses } = options
  const taken = tracker.take()
  for (const witness of witnesses) witness.taken(taken)
  let isInForce = true
  let succeeded = true
  for (const state of taken.states) {
    const report = await syncer.sync(state)
    const changed = taken.changed.get(state.family) ?? 0
    for (const witness of witnesses) witness.synced(report, changed)
    if (report.outcome === 'failed') isInForce = false
    else options.applied(state)
    if (report.outcome === 'failed' || report.failed.length > 0) succeeded = false
  }
  // Service ports that failed do not matter here: what another mode left does not serve them.
  if (isInForce) options.inForce()
  return succeeded
}
