import { pause } from '../async.js'

/** The time. Tests give a clock that they advance by hand. */
export interface Clock {
  /** Milliseconds since 1970. */
  now(): number
  /** Resolves after `ms`, or at once when the signal is aborted; never rejects. */
  sleep(ms: number, signal: AbortSignal): Promise<void>
}

export const systemClock: Clock = { now: () => Date.now(), sleep: pause }
