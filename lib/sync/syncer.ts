import { messageOf, KernelError } from '../errors.js'
import { systemClock, type Clock } from './clock.js'
import type { Mode, ServiceFailure } from '../modes/mode.js'
import type { DesiredState } from '../state/desired-state.js'
import type { IpFamily } from '../state/ip.js'

/** What one sync of one family did; the observers live on these. */
export interface SyncReport {
  readonly family: IpFamily
  readonly outcome: 'applied' | 'unchanged' | 'failed'
  readonly full: boolean
  readonly planMs: number
  readonly applyMs: number
  readonly bytes: number
  readonly objects: number
  readonly failed: readonly ServiceFailure[]
  /** Present when the outcome is `failed`. */
  readonly error?: string
  /** What the tool or the kernel printed about it. */
  readonly detail?: string
}

export interface SyncerOptions {
  /** A mode, or for a dry run a planner with an `apply` that only shows what it was given. */
  readonly mode: Pick<Mode, 'plan' | 'apply'>
  readonly clock?: Clock
}

interface Progress {
  readonly state: DesiredState
  /** The plan the kernel holds. */
  readonly plan: unknown
  readonly hasFailures: boolean
}

/** Calls the arrows in order, a family at a time; after a failure nothing is taken for known. */
export class Syncer {
  readonly #options: SyncerOptions
  readonly #clock: Clock
  readonly #applied = new Map<IpFamily, Progress>()
  #generation = 0

  constructor(options: SyncerOptions) {
    this.#options = options
    this.#clock = options.clock ?? systemClock
  }

  /** Makes the next sync write everything, because somebody else touched the kernel. */
  forget(): void {
    this.#generation++
    this.#applied.clear()
  }

  async sync(state: DesiredState): Promise<SyncReport> {
    const { family } = state
    const progress = this.#applied.get(family)
    const generation = this.#generation
    const started = this.#clock.now()
    let planned = started
    if (progress?.state === state && !progress.hasFailures) {
      const idle = { planMs: 0, applyMs: 0, bytes: 0, objects: 0, failed: [] }
      return { family, outcome: 'unchanged', full: false, ...idle }
    }
    try {
      const plan = this.#options.mode.plan(state)
      planned = this.#clock.now()
      const applied = await this.#options.mode.apply(plan, progress?.plan)
      // A `forget` in the meantime means this result was disturbed: it must not count as known.
      if (generation === this.#generation) {
        this.#applied.set(family, { state, plan, hasFailures: applied.failed.length > 0 })
      }
      const applyMs = this.#clock.now() - planned
      return { family, outcome: 'applied', planMs: planned - started, applyMs, ...applied }
    } catch (error) {
      this.#applied.delete(family)
      return {
        family,
        outcome: 'failed',
        full: progress === undefined,
        planMs: planned - started,
        applyMs: this.#clock.now() - planned,
        bytes: 0,
        objects: 0,
        failed: [],
        error: messageOf(error),
        ...(error instanceof KernelError && error.detail !== '' ? { detail: error.detail } : {}),
      }
    }
  }
}
