import type { DesiredState } from '../../state/desired-state.js'
import type { FamilyPlan } from '../../modes/mode.js'
import type { IpFamily } from '../../state/ip.js'
import type { SyncReport } from '../../sync/syncer.js'

/** One IP family: what was decided last, and what the kernel has. */
export interface FamilyProgress {
  readonly family: IpFamily
  readonly wanted: DesiredState
  /** Undefined before the first sync has succeeded. */
  readonly applied: AppliedPlan | undefined
  /** Why the last sync failed; empty if it did not. */
  readonly error: string
}

export interface AppliedPlan {
  readonly state: DesiredState
  readonly plan: FamilyPlan
  /** Why single service ports are not in the kernel, by `DesiredService.key`. */
  readonly failed: ReadonlyMap<string, string>
}

/** Notes the state that a sync has decided. */
export function decided(before: FamilyProgress | undefined, wanted: DesiredState): FamilyProgress {
  const { applied, error = '' } = before ?? {}
  return { family: wanted.family, wanted, applied, error }
}

export function ended(before: FamilyProgress, report: SyncReport): FamilyProgress {
  if (report.outcome === 'failed') return { ...before, error: report.error ?? 'unknown' }
  const { plan, failed } = report
  if (!plan) return { ...before, error: '' }
  const reasons = new Map(failed.map(({ key, reason }) => [key, reason]))
  return { ...before, applied: { state: before.wanted, plan, failed: reasons }, error: '' }
}
