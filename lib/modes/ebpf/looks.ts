import { pause } from '../../async.js'
import { messageOf } from '../../errors.js'
import type { Log } from '../mode.js'

const everyMs = 250

/** Calls `look` at intervals until the signal, and once after the signal. */
export async function lookUntil(
  signal: AbortSignal,
  look: () => void,
  { log, failed }: { readonly log: Log; readonly failed: string },
): Promise<void> {
  const tryLook = () => {
    try {
      look()
    } catch (error) {
      log.warn({ error: messageOf(error) }, failed)
    }
  }
  while (!signal.aborted) {
    await pause(everyMs, signal)
    tryLook()
  }
}
