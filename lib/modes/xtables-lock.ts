import type { Locked } from '../kernel/iptables.js'
import type { Log } from './mode.js'

/**
 * Time between two warnings. Several programs wait and ask often, and a lock may last for minutes.
 */
const lockReportMs = 60_000

const probePatienceMs = 60_000

/** A probe waits, because a held lock is no reason to choose another mode or to fail. */
export const waitToProbe = (log: Log) => waitForLock(log, () => probePatienceMs)

/** Waits for the xtables lock for at most `patienceMs`, and logs this once a minute. */
export function waitForLock(
  log: Log,
  patienceMs: () => number,
  now = () => performance.now(),
): (locked: Locked) => boolean {
  let reportedAt = -Infinity
  return ({ action, waitedMs, holder = 'another program' }) => {
    const isPatient = waitedMs < patienceMs()
    const fields = { action, holder, waitedSeconds: Math.round(waitedMs / 1000) }
    const isDue = now() - reportedAt >= lockReportMs
    if (isDue) reportedAt = now()
    const message = `the xtables lock is held, ${isPatient ? 'waiting' : 'giving up'}`
    log[isDue ? 'warn' : 'debug'](fields, message)
    return isPatient
  }
}
