interface Sleeper {
  readonly until: number
  readonly wake: () => void
}

/**
 * Plays the time of this process for all that waits by `setTimeout`. Time passes only when a test
 * says so, so that a slow machine changes nothing.
 */
export function playTime(): { pass(ms: number): Promise<void> } {
  let now = 0
  const sleepers = new Set<Sleeper>()
  const { clearTimeout } = globalThis
  Object.assign(globalThis, {
    setTimeout: (wake: () => void, ms = 0): Sleeper => {
      const sleeper = { until: now + ms, wake }
      sleepers.add(sleeper)
      return sleeper
    },
    // Some timers are older than this.
    clearTimeout: (timer: Sleeper & NodeJS.Timeout) => {
      if (!sleepers.delete(timer)) clearTimeout(timer)
    },
  })
  return {
    pass: async (ms) => {
      now += ms
      for (const sleeper of sleepers) {
        if (sleeper.until > now) continue
        sleepers.delete(sleeper)
        sleeper.wake()
      }
      await settled()
    },
  }
}

/** Waits a few turns of the event loop, so that streams and ended waits have had their effects. */
async function settled(): Promise<void> {
  for (let turns = 0; turns < 5; turns++) await new Promise((resolve) => setImmediate(resolve))
}
