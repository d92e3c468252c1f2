import { restAfterLongWork } from '../async.js'
import { messageOf, KernelError } from '../errors.js'
import type { FamilyPlan, Mode, ServiceFailure } from '../modes/mode.js'
import type { DesiredState } from '../state/desired-state.js'
import type { IpFamily } from '../state/ip.js'
import { systemClock } from './loop.js'

/** What one sync of one family did. Log, metrics, health and page are made from these reports. */
export interface SyncReport {
  readonly family: IpFamily
  readonly outcome: 'applied' | 'unchanged' | 'failed'
  readonly full: boolean
  readonly planMs: number
  readonly applyMs: number
  readonly bytes: number
  readonly objects: number
  readonly failed: readonly ServiceFailure[]
  /** What is in the kernel now. Present when the outcome is `applied`. */
  readonly plan?: FamilyPlan
  /**
   * Service ports that failed in the sync before, and whose rules are in the kernel only now: all,
   * where another program may have removed them.
   */
  readonly late?: readonly string[]
  /** Present when the outcome is `failed`. */
  readonly error?: string
  /** What the tool or the kernel printed about the error. */
  readonly detail?: string
}

/** The state applied last, or being applied. */
interface Progress {
  readonly state: DesiredState
  hasFailures: boolean
}

/** Plans and applies, a family at a time, and skips a state that is in the kernel already. */
export class Syncer {
  readonly #mode: Pick<Mode, 'plan' | 'apply' | 'forget'>
  readonly #progress = new Map<IpFamily, Progress>()
  /** By family: the service ports that failed in the last sync. */
  readonly #refused = new Map<IpFamily, ReadonlySet<string>>()

  constructor(mode: Pick<Mode, 'plan' | 'apply' | 'forget'>) {
    this.#mode = mode
  }

  /**
   * Makes the next sync write everything, because another program changed the kernel. The result of
   * a sync that runs is not trusted either.
   */
  forget(): void {
    this.#progress.clear()
    this.#mode.forget()
  }

  async sync(state: DesiredState): Promise<SyncReport> {
    const { family } = state
    const before = this.#progress.get(family)
    const started = systemClock.now()
    let planned = started
    if (before?.state === state && !before.hasFailures) {
      const idle = { planMs: 0, applyMs: 0, bytes: 0, objects: 0, failed: [] }
      return { family, outcome: 'unchanged', full: false, ...idle }
    }
    const progress = { state, hasFailures: false }
    this.#progress.set(family, progress)
    try {
      const plan = this.#mode.plan(state)
      planned = systemClock.now()
      await restAfterLongWork(started)
      const applied = await this.#mode.apply(plan)
      progress.hasFailures = applied.failed.length > 0
      const times = { planMs: planned - started, applyMs: systemClock.now() - planned }
      const refused = new Set(applied.failed.map(({ key }) => key))
      const refusedBefore = this.#refused.get(family)
      // After its first sync, a mode writes everything only where rules may have been missing.
      const isRepair = refusedBefore !== undefined && applied.full
      const missing = isRepair ? state.services.keys() : (refusedBefore ?? [])
      const late = [...missing].filter((key) => !refused.has(key))
      this.#refused.set(family, refused)
      return { family, outcome: 'applied', ...times, plan, late, ...applied }
    } catch (error) {
      this.#progress.delete(family)
      return {
        family,
        outcome: 'failed',
        full: before === undefined,
        planMs: planned - started,
        applyMs: systemClock.now() - planned,
        bytes: 0,
        objects: 0,
        failed: [],
        error: messageOf(error),
        ...(error instanceof KernelError && error.detail !== '' ? { detail: error.detail } : {}),
      }
    }
  }
}
