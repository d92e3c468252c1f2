import type { DesiredService } from './desired-state.js'
import type { IpFamily } from './ip.js'
import { isEqual } from './json.js'
import type { ServiceObject } from './objects.js'

/** A health-check node port and what it answers. */
export interface HealthCheck {
  readonly namespace: string
  readonly name: string
  readonly port: number
  /**
   * Number of unique ready local addresses over all ports (E19), for each family of the Service. A
   * health check over one family gets the number of that family. Others have no port.
   */
  readonly localEndpoints: Readonly<Partial<Record<IpFamily, number>>>
}

type PortsByFamily = readonly (readonly [IpFamily, readonly DesiredService[]])[]

/**
 * The health-check node ports by `namespace/name` after these changes; undefined Services are gone.
 * `portsOf` finds the service ports. Few Services have such a node port and need them.
 */
export function withChanges(
  current: ReadonlyMap<string, HealthCheck>,
  services: Iterable<readonly [id: string, service: ServiceObject | undefined]>,
  portsOf: (id: string) => PortsByFamily,
): ReadonlyMap<string, HealthCheck> {
  // A new map, because a `StateUpdate` holds the old one. One for all changes: a copy for each made
  // a start quadratic.
  let changed: Map<string, HealthCheck> | undefined
  for (const [id, service] of services) {
    const next = service && healthCheckOf(service, () => portsOf(id))
    if (isEqual((changed ?? current).get(id), next)) continue
    changed ??= new Map(current)
    if (next) changed.set(id, next)
    else changed.delete(id)
  }
  return changed ?? current
}

function healthCheckOf(
  { namespace, name, healthCheckNodePort: port }: ServiceObject,
  portsOf: () => PortsByFamily,
): HealthCheck | undefined {
  if (port === 0) return undefined
  const counts = portsOf().flatMap(([family, ports]) => {
    const addresses = new Set(ports.flatMap((each) => each.readyLocalAddresses))
    return ports.length === 0 ? [] : [[family, addresses.size] as const]
  })
  return { namespace, name, port, localEndpoints: Object.fromEntries(counts) }
}
