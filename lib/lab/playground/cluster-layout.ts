import {
  addresses,
  bridgeName,
  places,
  podAddress,
  podPlaces,
  podsInPlace,
  ranges,
  uplinkName,
  type Place,
} from '../world/topology.js'
import type { Sender } from '../../page/view.js'

/** The addresses of a cluster's places, and from which of them requests can be sent. Plain data. */
export interface ClusterLayout {
  /** The addresses of each place, the main one first. */
  readonly addresses: Readonly<Record<Place, readonly string[]>>
  /** The rooms for pods of each node, in the order in which they are used. */
  readonly rooms: Readonly<Record<string, readonly PodRoom[]>>
  /** The range of all pods, IPv4. */
  readonly clusterCidr: string
  readonly podCidrs: Readonly<Record<'node' | 'node-2', readonly string[]>>
  readonly serviceCidrs: readonly string[]
  readonly nodePorts: { readonly from: number; readonly to: number }
  /** Addresses of load balancers, without the last number. */
  readonly loadBalancers: string
  /** Where the API server listens. */
  readonly api: { readonly host: string; readonly port: number }
  /** The ports of the Services of the playground. */
  readonly ports: { readonly web: number; readonly echo: number; readonly kubernetes: number }
  /** Configuration of the daemon besides its mode, by path. */
  readonly config: Readonly<Record<string, unknown>>
  readonly senders: readonly Sender[]
  /** The interface of the node through which the packets of each sender come in, if they do. */
  readonly interfaces: Readonly<Partial<Record<Sender, string>>>
  /** What cannot be shown here, and why; a sentence each. */
  readonly limits: readonly string[]
  /** What was built, as the tour prints it in a terminal. */
  readonly built: string
}

/** Room for one pod: its place, and its addresses there, the main one first. */
export interface PodRoom {
  readonly place: Place
  readonly addresses: readonly string[]
}

/** The addresses of a small cluster of network namespaces. */
export const namespaceLayout: ClusterLayout = {
  addresses: byPlace((place) => addresses[place].flatMap(({ IPv4, IPv6 }) => [IPv4, IPv6])),
  rooms: roomsWith((place, index) => {
    const { IPv4, IPv6 } = podAddress(place, index)
    return [IPv4, IPv6]
  }),
  clusterCidr: ranges.clusterPods.IPv4,
  podCidrs: { node: Object.values(ranges.pods), 'node-2': Object.values(ranges.pods2) },
  serviceCidrs: Object.values(ranges.services),
  nodePorts: { from: 30_000, to: 32_767 },
  loadBalancers: '203.0.113.',
  api: { host: '127.0.0.1', port: 0 },
  ports: { web: 80, echo: 7, kubernetes: 443 },
  // Userspace mode hides clients, as the original did: lessons compare what pods see in each mode.
  config: { clusterCIDR: ranges.clusterPods.IPv4, 'userspace.sourceAddress': 'hide' },
  senders: ['client-pod', 'node', 'outside', 'backend'],
  interfaces: { 'client-pod': bridgeName, outside: uplinkName, backend: bridgeName },
  limits: [],
  built: 'two nodes with pods out of network namespaces',
}

export function byPlace(
  list: (place: Place) => readonly string[],
): Readonly<Record<Place, readonly string[]>> {
  const entries = places.map((place): [Place, readonly string[]] => [place, list(place)])
  return Object.fromEntries(entries) as Record<Place, readonly string[]>
}

/** Rooms of both nodes. Every place of a node gets one pod before any gets a second. */
export function roomsWith(
  addressesOf: (place: Place, index: number) => readonly string[],
): ClusterLayout['rooms'] {
  const indexes = Array.from({ length: podsInPlace }, (_, index) => index)
  const rooms = Object.entries(podPlaces).map(([node, own]) => [
    node,
    indexes.flatMap((index) =>
      own.map((place): PodRoom => ({ place, addresses: addressesOf(place, index) })),
    ),
  ])
  return Object.fromEntries(rooms) as ClusterLayout['rooms']
}

/** The main address of a place, IPv4. */
export function addressIn(layout: ClusterLayout, place: Place): string {
  return layout.addresses[place][0] ?? ''
}
