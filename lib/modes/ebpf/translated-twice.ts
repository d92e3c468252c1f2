import type { DesiredService, DesiredState, Endpoint } from '../../state/desired-state.js'
import { hostPort } from '../../state/ip.js'
import { PersistentMap } from '../../state/persistent-map.js'
import { updateRequests, type Requested, type Requests } from '../requests.js'

type Services = DesiredState['services']

/** Service ports with an endpoint where rules translate packets. */
export interface TranslatedTwice {
  /** `DesiredService.key` */
  readonly keys: ReadonlySet<string>
  /** Service ports with an endpoint at an address where node ports are served. */
  readonly here: ReadonlySet<string>
  readonly services: Services
  /**
   * Where rules translate packets. By `ip:port`: external and load-balancer addresses. By `:port`:
   * node ports.
   */
  readonly addresses: Requests<Requested>
  /** The addresses at which node ports are served. */
  readonly own: readonly string[]
}

/**
 * Packets of a socket that was translated to such an address would be translated again, by rules,
 * and reach another Service. All endpoints are looked at only if an external address has come or
 * gone, or the node has changed.
 */
export function translatedTwice(
  { services, node }: DesiredState,
  before: TranslatedTwice | undefined,
): TranslatedTwice {
  const changes = services.since(before?.services)
  const addresses = updateRequests(before?.addresses ?? noAddresses, changes, reader)
  const [keys, here] = [new Set(before?.keys), new Set(before?.here)]
  const own = node.nodePorts.addresses
  const isHere = ({ ip }: Endpoint) => own.includes(ip)
  const isTwice = (endpoint: Endpoint) =>
    addresses.has(endpoint.key) || (isHere(endpoint) && addresses.has(`:${endpoint.port}`))
  const look = (key: string, service: DesiredService | undefined) => {
    const endpoints = service?.reachableEndpoints ?? []
    note(keys, key, endpoints.some(isTwice))
    note(here, key, endpoints.some(isHere))
  }
  const moved = addresses.since(before?.addresses)
  const places = [...moved.added, ...moved.removed].map(([place]) => place)
  const areAddressesMoved = places.some((place) => !place.startsWith(':'))
  if (own !== before?.own || areAddressesMoved) {
    keys.clear()
    here.clear()
    for (const [key, service] of services) look(key, service)
  } else {
    for (const [key] of changes.removed) look(key, undefined)
    for (const [key, service] of changes.added) look(key, service)
    for (const [key, service] of changes.changed) look(key, service)
    // Node ports are used at the addresses of this node, which few endpoints have.
    if (places.length > 0) for (const key of [...here]) look(key, services.get(key))
  }
  return { keys, here, services, addresses, own }
}

function note(keys: Set<string>, key: string, isIn: boolean): void {
  if (isIn) keys.add(key)
  else keys.delete(key)
}

const noAddresses = PersistentMap.empty<readonly Requested[]>()

const reader = {
  of: ({ key: owner, port, nodePort, externalIps, loadBalancerIps }: DesiredService) =>
    [
      ...[...externalIps, ...loadBalancerIps].map((ip) => hostPort(ip, port)),
      ...(nodePort === 0 ? [] : [`:${nodePort}`]),
    ].map((at) => [at, { owner }] as const),
  isSame: () => true,
}
