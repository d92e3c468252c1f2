import type { Iptables } from '../../../kernel/iptables.js'
import type { ServiceFailure } from '../../mode.js'
import type { ServicePlan } from '../plan.js'
import type { PlacedRule } from './sub-chains.js'

/** Leads traffic of one family to the listeners: by iptables rules, or addresses of this machine. */
export interface Portals {
  /** Listeners listen on addresses of Services. An old one has to close before a new one opens. */
  readonly listensDirectly: boolean
  /** What writes the rules, for others to use: to open it starts a dozen programs. */
  readonly iptables: Iptables | undefined
  /** Prepares what listeners need before they open. Resolves to the services where that failed. */
  prepare?(
    services: readonly ServicePlan[],
    others: { readonly gone: readonly string[]; readonly full: boolean },
  ): Promise<readonly ServiceFailure[]>
  /** Writes everything, whatever the kernel has now. */
  replaceAll(rules: ReadonlyMap<string, readonly PlacedRule[]>, leave: Leave): Promise<WriteOutcome>
  /** Writes what differs from what was written before; a service without rules is removed. */
  change(rules: ReadonlyMap<string, readonly PlacedRule[]>, leave: Leave): Promise<WriteOutcome>
  /** Whether everything that was written is still there. Syncs do not wait for the answer. */
  isIntact(): Promise<boolean>
  /**
   * Removes the rules that lead here, of this run and of earlier ones (US19). Resolves to the proxy
   * ports that UDP packets were sent to until now.
   */
  remove(): Promise<ReadonlySet<number>>
  /** Call it when no connection is left: removes the rule or addresses that these needed. */
  drained(): Promise<void>
}

/** Ends the connections of addresses, which are then taken from this machine. */
export type Leave = (addresses: readonly string[]) => Promise<void>

export interface WriteOutcome {
  readonly bytes: number
  readonly objects: number
  /** Keys of the services whose rules differ now. */
  readonly changed: readonly string[]
  /** Everything was written, because rules of before were gone. */
  readonly isRepair?: true
}
