import type { IpFamily } from '../../state/ip.js'

/**
 * The places of a world: the node under test with its pods, a second node with its pods, and the
 * outside. One network namespace each.
 */
export const places = [
  'node',
  'client-pod',
  'pod-1',
  'pod-2',
  'pod-3',
  'node-2',
  'remote-pod',
  'pod-4',
  'pod-5',
  'outside',
] as const

export type Place = (typeof places)[number]

export interface AddressPair {
  readonly IPv4: string
  readonly IPv6: string
}

/** Addresses of a place; packets are sent from the first one by default. */
export const addresses: Readonly<Record<Place, readonly [AddressPair, ...AddressPair[]]>> = {
  node: [
    { IPv4: '192.168.50.1', IPv6: 'fd00:50::1' },
    { IPv4: '192.168.50.11', IPv6: 'fd00:50::11' },
    { IPv4: '10.244.1.1', IPv6: 'fd00:10:244:1::1' },
  ],
  'client-pod': [{ IPv4: '10.244.1.10', IPv6: 'fd00:10:244:1::10' }],
  'pod-1': [{ IPv4: '10.244.1.21', IPv6: 'fd00:10:244:1::21' }],
  'pod-2': [{ IPv4: '10.244.1.22', IPv6: 'fd00:10:244:1::22' }],
  'pod-3': [{ IPv4: '10.244.1.23', IPv6: 'fd00:10:244:1::23' }],
  'node-2': [
    { IPv4: '192.168.50.2', IPv6: 'fd00:50::2' },
    { IPv4: '10.244.2.1', IPv6: 'fd00:10:244:2::1' },
  ],
  'remote-pod': [{ IPv4: '10.244.2.10', IPv6: 'fd00:10:244:2::10' }],
  'pod-4': [{ IPv4: '10.244.2.24', IPv6: 'fd00:10:244:2::24' }],
  'pod-5': [{ IPv4: '10.244.2.25', IPv6: 'fd00:10:244:2::25' }],
  outside: [
    { IPv4: '192.168.50.100', IPv6: 'fd00:50::100' },
    { IPv4: '192.168.50.101', IPv6: 'fd00:50::101' },
    { IPv4: '192.168.50.102', IPv6: 'fd00:50::102' },
  ],
}

export const podsOfNode = ['client-pod', 'pod-1', 'pod-2', 'pod-3'] as const
/** Whether a process there is one of the node under test. */
export const isOnNode = (place: Place): boolean =>
  place === 'node' || podsOfNode.some((pod) => pod === place)
export const podsOfNode2 = ['remote-pod', 'pod-4', 'pod-5'] as const

/** The bridge of the node's pods, and the interface towards the other node and the outside. */
export const bridgeName = 'cbr0'
export const uplinkName = 'eth0'

/** Pod ranges by node, and the ranges whose addresses exist only in the rules of a proxy. */
export const ranges = {
  pods: { IPv4: '10.244.1.0/24', IPv6: 'fd00:10:244:1::/64' },
  pods2: { IPv4: '10.244.2.0/24', IPv6: 'fd00:10:244:2::/64' },
  clusterPods: { IPv4: '10.244.0.0/16', IPv6: 'fd00:10:244::/48' },
  /** Of the nodes and the outside. */
  lan: { IPv4: '192.168.50.0/24', IPv6: 'fd00:50::/64' },
  services: { IPv4: '10.96.0.0/16', IPv6: 'fd00:10:96::/112' },
  loadBalancers: { IPv4: '203.0.113.0/24', IPv6: '2001:db8:203::/64' },
  externalIps: { IPv4: '198.51.100.0/24', IPv6: '2001:db8:198::/64' },
} as const satisfies Readonly<Record<string, AddressPair>>

export const families: readonly IpFamily[] = ['IPv4', 'IPv6']

export function addressOf(place: Place, family: IpFamily, index = 0): string {
  const pair = addresses[place][index]
  if (!pair) throw new RangeError(`${place} has no address number ${index}`)
  return pair[family]
}

/** The places that can hold pods of the playground, by node. */
export const podPlaces = {
  'node-1': ['pod-1', 'pod-2', 'pod-3'],
  'node-2': ['pod-4', 'pod-5'],
} as const satisfies Readonly<Record<string, readonly Place[]>>

/** The number of pods that can share a place, each with an address of its own. */
export const podsInPlace = 4

/** The address of one of the pods that share a place; the first has that of the place. */
export function podAddress(place: Place, index: number): AddressPair {
  const { IPv4, IPv6 } = addresses[place][0]
  const shifted = (text: string) =>
    text.replace(/\d+$/, (last) => String(Number(last) + 10 * index))
  return { IPv4: shifted(IPv4), IPv6: shifted(IPv6) }
}

/** The addresses of the further pods that share a place. */
export function furtherAddresses(place: Place): readonly AddressPair[] {
  return Array.from({ length: podsInPlace - 1 }, (_, index) => podAddress(place, index + 1))
}

const podHosts: readonly Place[] = Object.values(podPlaces).flat()
const owners: ReadonlyMap<string, Place> = new Map(
  places.flatMap((place) => {
    const further = podHosts.includes(place) ? furtherAddresses(place) : []
    return [...addresses[place], ...further].flatMap(({ IPv4, IPv6 }) =>
      [IPv4, IPv6].map((address) => [address, place] as const),
    )
  }),
)

/** Which place owns an address; undefined for service addresses and unknown ones. */
export function placeOf(address: string): Place | undefined {
  return owners.get(address)
}

export const backendPorts: readonly number[] = [8080, 8081, 9090]
