import { pause } from '../../async.js'
import { sentTo } from './sent-to.js'
import type { Probe } from './selection.js'
import type { TestBed } from './test-bed.js'

interface ReachDeps {
  readonly testBed: Pick<TestBed, 'layout' | 'flow' | 'gauge'>
  readonly mode: string
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
  { testBed, mode, probe, passed, signal }: ReachDeps,
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
    const addresses = testBed.layout.addresses['client-pod']
    const asked = { mode, addresses, request: one.request }
    const [endpoints] = await sentTo(testBed, asked, result ? [result] : [])
    passed(one.countersTo(result?.backend, endpoints?.at(-1)))
    if (result?.backend === pod) return true
  }
  return false
}
