import { isProxyMode, type Config, type ModeName } from '../../config/config.js'
import { schedulerOf, weightsOf } from '../../modes/ipvs/service-part.js'
import { ipvsSettings } from '../../modes/ipvs/settings.js'
import { firstOf, weightsFor } from '../../modes/shares.js'
import type { DesiredService, Endpoint } from '../../state/desired-state.js'

/** Who chooses among the endpoints. */
export interface Balancer {
  readonly mode: ModeName
  readonly config: Config
}

/** The endpoints that this node may use and sends no new connection to, with the reason. */
export function idleEndpoints(
  service: DesiredService,
  balancer: Balancer,
): ReadonlyMap<string, string> {
  const found = new Map<string, string>()
  const busy = new Set<string>()
  for (const list of [service.clusterEndpoints, service.localEndpoints]) {
    for (const [key, reason] of reasonsIn(list, service, balancer)) {
      if (reason === undefined) busy.add(key)
      else found.set(key, reason)
    }
  }
  // What one list leaves out, the other may use.
  return new Map([...found].filter(([key]) => !busy.has(key)))
}

/** For each endpoint of a list why it is idle; undefined: it is not. */
function reasonsIn(
  endpoints: readonly Endpoint[],
  service: DesiredService,
  balancer: Balancer,
): readonly (readonly [key: string, reason: string | undefined])[] {
  const { weights, isFirstAlone } = drawing(endpoints, service, balancer)
  const all = endpoints.map(({ key }, index) => ({ key, weight: weights[index] ?? 1 }))
  const first = isFirstAlone ? firstOf(all) : undefined
  const end = isProxyMode(balancer.mode) ? 'fails' : 'leaves'
  return all.map((each) => [each.key, reasonOf(each)])

  function reasonOf(each: { readonly key: string; readonly weight: number }): string | undefined {
    // With affinity a client comes back to its endpoint, whatever the weight is now.
    const what = service.affinitySeconds === undefined ? 'connections' : 'clients'
    if (each.weight === 0) return `weight 0, so it gets no new ${what}`
    if (first === undefined || each === first) return undefined
    return `in reserve: it gets new ${what} only when ${first.key} ${end}`
  }
}

/** Weight 0 gets nothing. Where the first is alone, the largest weight gets everything. */
function drawing(
  endpoints: readonly Endpoint[],
  service: DesiredService,
  { mode, config }: Balancer,
) {
  if (mode === 'ipvs') {
    const { scheduler } = schedulerOf(service, ipvsSettings(config))
    return { weights: weightsOf(service, endpoints), isFirstAlone: scheduler === 'fo' }
  }
  const word = service.balance?.used
  return { weights: weightsFor(word, endpoints), isFirstAlone: word === 'first' }
}
