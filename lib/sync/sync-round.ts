import { isEnding, restAfterLongWork } from '../async.js'
import type { DesiredState } from '../state/desired-state.js'
import type { StateUpdate, Tracker } from '../state/tracker.js'
import type { Syncer, SyncReport } from './syncer.js'

/** Turns syncs into log lines, metrics, health answers or a page. */
export interface SyncListener {
  /** A sync of this update starts. */
  started(update: StateUpdate): void
  /** One family is done; `changed` counts its service ports in the update. */
  synced?(report: SyncReport, changed: number): void
}

interface SyncRoundOptions {
  readonly tracker: Pick<Tracker, 'take'>
  readonly syncer: Pick<Syncer, 'sync'>
  readonly listeners: readonly SyncListener[]
  /**
   * Called when the rules of a state are in the kernel. `late` are service ports of it whose rules
   * were refused when the state, or an earlier one, was applied before.
   */
  readonly applied: (state: DesiredState, late: readonly string[]) => void
  /** Called when the rules of every family are in the kernel. */
  readonly allApplied: () => void
  /** A sync that fails after this signal is not reported, and is the last. */
  readonly signal?: AbortSignal
}

/**
 * One sync: it writes what has changed to the kernel, one family after the other. A family that
 * fails does not stop the other (R06). Returns whether everything succeeded.
 */
export async function syncRound(options: SyncRoundOptions): Promise<boolean> {
  const { tracker, syncer, listeners } = options
  const began = performance.now()
  const update = tracker.take()
  await restAfterLongWork(began)
  for (const listener of listeners) listener.started(update)
  let areAllApplied = true
  let succeeded = true
  for (const state of update.states) {
    const report = await syncer.sync(state)
    if (report.outcome === 'failed' && (await isEnding(options.signal))) return false
    const changed = update.changed.get(state.family) ?? 0
    for (const listener of listeners) listener.synced?.(report, changed)
    if (report.outcome === 'failed') areAllApplied = false
    else options.applied(state, report.late ?? [])
    if (report.outcome === 'failed' || report.failed.length > 0) succeeded = false
  }
  // Single service ports may have failed. Rules that another mode left would not serve them either.
  if (areAllApplied) options.allApplied()
  return succeeded
}
