import { pause } from '../../async.js'

/** A machine under load is slow. On others the wait for a daemon ends early. */
export const daemonPatienceMs = 300_000

const askMs = 50

/** Waits until `isTrue`, but not for ever. Resolves to whether it came true. */
export async function untilTrue(
  isTrue: () => boolean | Promise<boolean>,
  signal: AbortSignal,
  patienceMs = 60_000,
): Promise<boolean> {
  const deadline = Date.now() + patienceMs
  for (;;) {
    if (await isTrue()) return true
    if (Date.now() >= deadline || signal.aborted) return false
    await pause(askMs, signal)
  }
}
