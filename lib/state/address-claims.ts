import type { EndpointSliceObject, ServiceObject } from './objects.js'

/**
 * Most addresses have one id; an array for each would need more memory than the endpoints. Some
 * have thousands: all Services may share the address of a load balancer, or an endpoint.
 */
type IdsByAddress = Map<string, string | readonly string[] | Set<string>>

/** More ids than this are in a set, so that one comes or goes without a look at the others. */
const mostInArray = 8

/** The objects that may have to change because a Service got, changed or lost a ClusterIP. */
interface Affected {
  /** Services that ask for the address as their own. */
  readonly askers: ReadonlySet<string>
  /** EndpointSlices with an endpoint at the address. */
  readonly slices: ReadonlySet<string>
}

/**
 * Tells for an address which Services have it as their ClusterIP, which ask for it as an external
 * or load-balancer address, and which EndpointSlices have an endpoint there. Ids are
 * `namespace/name`, in alphabetical order.
 */
export class AddressClaims {
  readonly #owners: IdsByAddress = new Map()
  readonly #askers: IdsByAddress = new Map()
  readonly #slices: IdsByAddress = new Map()

  /** The Services with this ClusterIP; more than one only while the API is inconsistent. */
  owners(ip: string): readonly string[] {
    return idsAt(this.#owners, ip).sort()
  }

  /** Replaces what a Service claims. */
  replace(
    id: string,
    before: ServiceObject | undefined,
    after: ServiceObject | undefined,
  ): Affected {
    const [left, held] = [clusterIpsOf(before), clusterIpsOf(after)]
    move(this.#owners, id, left, held)
    move(this.#askers, id, askedBy(before), askedBy(after))
    const at = (ids: IdsByAddress) =>
      new Set([...left, ...held].flatMap((ip) => idsAt(ids, ip).sort()))
    return { askers: at(this.#askers), slices: at(this.#slices) }
  }

  /** Replaces the endpoint addresses of a slice; the work is proportional to the slice. */
  replaceEndpoints(
    id: string,
    before: EndpointSliceObject | undefined,
    after: EndpointSliceObject | undefined,
  ): void {
    const [old, present] = [ipsOf(before), ipsOf(after)]
    const gone = [...old].filter((ip) => !present.has(ip))
    const come = [...present].filter((ip) => !old.has(ip))
    move(this.#slices, id, gone, come)
  }
}

function clusterIpsOf(service: ServiceObject | undefined): readonly string[] {
  return Object.values(service?.clusterIps ?? {})
}

function askedBy(service: ServiceObject | undefined): readonly string[] {
  return service ? [...service.externalIps, ...service.loadBalancerIps] : []
}

function ipsOf(slice: EndpointSliceObject | undefined): ReadonlySet<string> {
  return new Set(slice?.endpoints.map(({ ip }) => ip))
}

function move(ids: IdsByAddress, id: string, from: readonly string[], to: readonly string[]): void {
  for (const ip of from) remove(ids, ip, id)
  for (const ip of to) add(ids, ip, id)
}

function add(ids: IdsByAddress, ip: string, id: string): void {
  const known = ids.get(ip)
  if (known instanceof Set) {
    known.add(id)
    return
  }
  const others = idsAt(ids, ip).filter((other) => other !== id)
  if (others.length === 0) ids.set(ip, id)
  else ids.set(ip, others.length < mostInArray ? [...others, id] : new Set([...others, id]))
}

function remove(ids: IdsByAddress, ip: string, id: string): void {
  const known = ids.get(ip)
  if (known instanceof Set) {
    known.delete(id)
    if (known.size > mostInArray) return
  }
  const others = idsAt(ids, ip).filter((other) => other !== id)
  const [first] = others
  if (first === undefined) ids.delete(ip)
  else ids.set(ip, others.length === 1 ? first : others)
}

function idsAt(ids: IdsByAddress, ip: string): string[] {
  const found = ids.get(ip) ?? []
  return typeof found === 'string' ? [found] : [...found]
}
