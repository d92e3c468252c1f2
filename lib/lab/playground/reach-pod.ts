import { pause } from '../../async.js'
import type { Probe } from './selection.js'
import type { TestBed } from './test-bed.js'

export interface ReachDeps {
  readonly testBed: Pick<TestBed, 'flow'>
  readonly probe: () => Probe
  /** Told the counters of each connection. */
  readonly passed: (keys: readonly string[]) => void
  readonly signal: AbortSignal
}

const reachMs = 3000
const waitMs = 5

/** Connects until this pod answers, for the timeline. The page does not show these connections. */
export async function reachPod(
  pod: string,
  { testBed, probe, passed, signal }: ReachDeps,
): Promise<boolean> {
  const deadline = Date.now() + reachMs
  while (Date.now() < deadline && !signal.aborted) {
    const one = probe()
    if (!one.mayReach(pod)) return false
    if (!one.isClear()) {
      await pause(waitMs, signal)
      continue
    }
    const [result] = await testBed.flow('client-pod', one.request)
    passed(one.countersTo(result?.backend))
    if (result?.backend === pod) return true
  }
  return false
}
