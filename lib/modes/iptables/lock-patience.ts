import type { Locked } from '../../kernel/iptables.js'
import type { Log } from '../mode.js'

/** Goes on waiting for the xtables lock for so long, and says so each time it is asked. */
export function waitForLock(log: Log, patienceMs: number): (locked: Locked) => boolean {
  return ({ action, waitedMs, holder = 'another program' }) => {
    const isPatient = waitedMs < patienceMs
    const fields = { action, holder, waitedSeconds: Math.round(waitedMs / 1000) }
    log.warn(fields, `the xtables lock is held, ${isPatient ? 'waiting' : 'giving up'}`)
    return isPatient
  }
}
