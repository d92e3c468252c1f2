import { categorizeEndpoints, only, type Categorized, type TopologyInput } from './endpoints.js'
import { withoutFailing } from './endpoint-health.js'
import type { DesiredService, Endpoint } from './desired-state.js'
import type { EndpointCheck } from './endpoint-check.js'

/** The endpoints of a service port by policy and hints, without those that fail their check. */
interface CheckedEndpoints extends Categorized {
  /**
   * Endpoints that serve, and pass their check or are used in spite of it. Their flows are kept.
   */
  readonly serving: readonly Endpoint[]
  readonly ready: readonly Endpoint[]
  /** Empty without a check, so that a Service without one costs no memory. */
  readonly health: Pick<DesiredService, 'health'>
}

/**
 * Applies the results of health checks to the state. An endpoint that fails its check is left out
 * as if it were not ready. This is the only place that does so, and no mode knows of checks.
 */
export function checkedEndpoints(
  input: Omit<TopologyInput, 'health'>,
  check: EndpointCheck | undefined,
  failing: ReadonlyMap<string, string>,
): CheckedEndpoints {
  const ready = input.candidates.filter(({ endpoint }) => endpoint.ready)
  if (!check) {
    const found = categorizeEndpoints(input)
    return { ...found, serving: servingOf(input), ready: ready.map(only), health: {} }
  }
  const known = ready.filter(({ endpoint }) => failing.has(endpoint.key)).map(only)
  const health = { failing, keepsLast: check.keepsLast }
  const found = categorizeEndpoints({ ...input, health })
  const used = new Set(found.reachableEndpoints)
  const wanted = known.length === 0 ? found : categorizeEndpoints(input)
  const endpoints = new Set([...wanted.reachableEndpoints, ...found.reachableEndpoints])
  const serving = servingOf(input)
  // One that fails and then terminates is still checked, or it would count as working again.
  const ending = serving.filter(({ key, ready }) => !ready && failing.has(key))
  return {
    ...found,
    serving: serving.filter((each) => !failing.has(each.key) || used.has(each)),
    ready: withoutFailing(ready, health).map(only),
    health: {
      health: {
        check,
        endpoints: [...[...endpoints].filter((each) => each.ready), ...ending],
        failing: known.map(({ key }) => ({ key, reason: failing.get(key) ?? '' })),
      },
    },
  }
}

function servingOf({ candidates }: Pick<TopologyInput, 'candidates'>): readonly Endpoint[] {
  return candidates.map(only).filter(({ serving }) => serving)
}
