import type { ServiceFailure } from '../../mode.js'
import type { ServicePlan } from '../plan.js'
import type { PlacedRule } from './sub-chains.js'

/** How the traffic of one family gets to the listeners: rules, or addresses of this machine. */
export interface Portals {
  /** Listeners stand on the addresses of Services themselves, so one must go before another can come. */
  readonly listensDirectly: boolean
  /** What has to be there before the listeners open; tells for which services it is not. */
  prepare(
    services: readonly ServicePlan[],
    others: { readonly gone: readonly string[]; readonly full: boolean },
  ): Promise<readonly ServiceFailure[]>
  /** Writes everything, whatever there is now. */
  replaceAll(rules: ReadonlyMap<string, readonly PlacedRule[]>): Promise<WriteOutcome>
  /** Writes what differs from what was written before; a service without rules is removed. */
  change(rules: ReadonlyMap<string, readonly PlacedRule[]>): Promise<WriteOutcome>
  /** Whether everything that was written is still there. */
  isIntact(): Promise<boolean>
  /**
   * Takes everything away, from this run or an earlier one (US19). Resolves to the ports that UDP
   * packets were sent to until now.
   */
  remove(): Promise<ReadonlySet<number>>
}

export interface WriteOutcome {
  readonly bytes: number
  readonly objects: number
  /** Keys of the services whose rules differ now. */
  readonly changed: readonly string[]
}
