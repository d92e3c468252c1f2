import { pause } from '../async.js'

/** Time that passes. Tests give a clock that they advance by hand. */
export interface Clock {
  /** Milliseconds that never jump, whatever the time of day is set to. */
  now(): number
  /** Resolves after `ms`, or at once when the signal is aborted; never rejects. */
  sleep(ms: number, signal: AbortSignal): Promise<void>
}

export const systemClock: Clock = { now: () => performance.now(), sleep: pause }
