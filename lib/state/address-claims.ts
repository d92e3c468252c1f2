import type { ServiceObject } from './objects.js'

type IdsByAddress = Map<string, readonly string[]>

/**
 * Which Services have an address as their ClusterIP, and which ask for it as an external or
 * load-balancer address. Ids are `namespace/name`, in alphabetical order.
 */
export class AddressClaims {
  readonly #owners: IdsByAddress = new Map()
  readonly #askers: IdsByAddress = new Map()

  /** The Services with this ClusterIP; more than one only while the API is inconsistent. */
  owners(ip: string): readonly string[] {
    return this.#owners.get(ip) ?? []
  }

  /** Replaces what a Service claims. Returns the Services for which that may make a difference. */
  replace(
    id: string,
    before: ServiceObject | undefined,
    after: ServiceObject | undefined,
  ): ReadonlySet<string> {
    const [left, held] = [clusterIpsOf(before), clusterIpsOf(after)]
    move(this.#owners, id, left, held)
    move(this.#askers, id, askedBy(before), askedBy(after))
    return new Set([...left, ...held].flatMap((ip) => this.#askers.get(ip) ?? []))
  }
}

function clusterIpsOf(service: ServiceObject | undefined): readonly string[] {
  return Object.values(service?.clusterIps ?? {})
}

function askedBy(service: ServiceObject | undefined): readonly string[] {
  return service ? [...service.externalIps, ...service.loadBalancerIps] : []
}

function move(ids: IdsByAddress, id: string, from: readonly string[], to: readonly string[]): void {
  const others = (ip: string) => (ids.get(ip) ?? []).filter((other) => other !== id)
  for (const ip of from) {
    const rest = others(ip)
    if (rest.length > 0) ids.set(ip, rest)
    else ids.delete(ip)
  }
  for (const ip of to) ids.set(ip, [...others(ip), id].sort())
}
