import { readFileSync } from 'node:fs'

/**
 * For how long the first thread of this process wanted to run so far, while others had all
 * processors, in ms. 0 where the kernel does not say; then it never grows.
 */
export function waitedForProcessorMs(file = '/proc/self/schedstat'): number {
  try {
    // Time on a processor, time of waiting for one, and how often it ran; in ns.
    const [, waited] = readFileSync(file, 'latin1').split(' ')
    const ms = Number(waited) / 1e6
    return Number.isFinite(ms) ? ms : 0
  } catch {
    // A kernel without CONFIG_SCHED_INFO, or a hidden /proc: all time counts as work.
    return 0
  }
}
