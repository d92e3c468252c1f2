import { schedulerFlag } from '../../kernel/ipvs/messages.js'

/**
 * The two bits some schedulers read. `mh` as upstream (IP03): the client's port counts, and dead
 * servers are passed over. `sh` passes them over too, or a draining one would refuse its clients.
 */
export function flagsOf(scheduler: string): number {
  if (scheduler === 'mh') return schedulerFlag.port | schedulerFlag.fallback
  return scheduler === 'sh' ? schedulerFlag.fallback : 0
}
