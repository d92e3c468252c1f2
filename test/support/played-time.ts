import { syncBuiltinESMExports } from 'node:module'
import promises from 'node:timers/promises'

interface Sleeper {
  readonly until: number
  readonly wake: () => void
}

/**
 * Plays the time of this process for all that waits by `node:timers/promises`. Time passes only
 * when a test says so, so that a slow machine changes nothing.
 */
export function playTime(): { pass(ms: number): Promise<void> } {
  let now = 0
  const sleepers = new Set<Sleeper>()
  const sleep = (ms = 0, value?: unknown, { signal }: { signal?: AbortSignal } = {}) =>
    new Promise<unknown>((resolve, reject) => {
      const end = (settle: () => void) => {
        sleepers.delete(sleeper)
        signal?.removeEventListener('abort', onAbort)
        settle()
      }
      const onAbort = () => end(() => reject(new Error('aborted')))
      const sleeper = { until: now + ms, wake: () => end(() => resolve(value)) }
      sleepers.add(sleeper)
      if (signal?.aborted) onAbort()
      signal?.addEventListener('abort', onAbort, { once: true })
    })
  Object.assign(promises, { setTimeout: sleep })
  // Modules that import the function by its name get this one too.
  syncBuiltinESMExports()
  return {
    pass: async (ms) => {
      now += ms
      for (const sleeper of sleepers) {
        if (sleeper.until <= now) sleeper.wake()
      }
      await settled()
    },
  }
}

/** Waits a few turns of the event loop, so that streams and ended waits have had their effects. */
async function settled(): Promise<void> {
  for (let turns = 0; turns < 5; turns++) await new Promise((resolve) => setImmediate(resolve))
}
