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

/** The health-check node ports of all Services. */
export class HealthCheckPorts {
  #current: ReadonlyMap<string, HealthCheck> = new Map<string, HealthCheck>()

  /** By `namespace/name`. */
  get current(): ReadonlyMap<string, HealthCheck> {
    return this.#current
  }

  /**
   * Takes over these changed Services; undefined ones are gone. `portsOf` finds the service ports.
   * Few Services have such a node port and need them.
   */
  update(
    services: Iterable<readonly [id: string, service: ServiceObject | undefined]>,
    portsOf: (id: string) => PortsByFamily,
  ): void {
    // A new map, because a `StateUpdate` holds the old one. One for all changes: a copy for each
    // made a start quadratic.
    let changed: Map<string, HealthCheck> | undefined
    for (const [id, service] of services) {
      const next = service && healthCheckOf(service, () => portsOf(id))
      if (isEqual((changed ?? this.#current).get(id), next)) continue
      changed ??= new Map(this.#current)
      if (next) changed.set(id, next)
      else changed.delete(id)
    }
    if (changed) this.#current = changed
  }
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
