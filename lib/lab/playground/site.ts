import { addresses, bridgeName, places, ranges, uplinkName, type Place } from '../world/topology.js'
import type { Sender } from '../../page/view.js'

/** Who has which address in a scene, and who can be sent from. Plain data. */
export interface Site {
  /** Of each place, its main one first. */
  readonly addresses: Readonly<Record<Place, readonly string[]>>
  /** Of all pods, IPv4. */
  readonly clusterCidr: string
  readonly podCidrs: Readonly<Record<'node' | 'node-2', readonly string[]>>
  readonly serviceCidrs: readonly string[]
  /** Where node ports are given out. */
  readonly nodePorts: { readonly from: number; readonly to: number }
  /** Addresses of load balancers, without the last number. */
  readonly loadBalancers: string
  /** Where the API server listens. */
  readonly api: { readonly host: string; readonly port: number }
  /** At which ports the two Services of the playground answer. */
  readonly ports: { readonly web: number; readonly echo: number }
  /** What the daemon is told beside its mode, by path of its configuration. */
  readonly config: Readonly<Record<string, unknown>>
  readonly senders: readonly Sender[]
  /** The interface of the node by which each sender's packets come. */
  readonly interfaces: Readonly<Record<Sender, string | undefined>>
  /** What cannot be shown here, and why; a sentence each. */
  readonly limits: readonly string[]
  /** What was built, for somebody who reads along in a terminal. */
  readonly built: string
}

/** The small cluster of network namespaces. */
export const worldSite: Site = {
  addresses: byPlace((place) => addresses[place].flatMap(({ IPv4, IPv6 }) => [IPv4, IPv6])),
  clusterCidr: ranges.clusterPods.IPv4,
  podCidrs: { node: Object.values(ranges.pods), 'node-2': Object.values(ranges.pods2) },
  serviceCidrs: Object.values(ranges.services),
  nodePorts: { from: 30_000, to: 32_767 },
  loadBalancers: '203.0.113.',
  api: { host: '127.0.0.1', port: 0 },
  ports: { web: 80, echo: 7 },
  config: { clusterCIDR: ranges.clusterPods.IPv4 },
  senders: ['client-pod', 'node', 'outside', 'backend'],
  interfaces: {
    'client-pod': bridgeName,
    node: undefined,
    outside: uplinkName,
    backend: bridgeName,
  },
  limits: [],
  built: 'two nodes with pods out of network namespaces',
}

/** Which numbers may follow 127 in a site on this machine; those below are somebody else's. */
export const hostSites = { first: 64, count: 190 }
const portsEach = 14

/**
 * Everything on one 127.x.0.0/16 of this machine, which has all those addresses anyway. Programs
 * stand for pods, each on an address of its own; the node is the machine itself.
 */
export function hostSite(second: number): Site {
  // All playgrounds of a machine share 127.0.0.1, so each has node ports of its own.
  const firstPort = 30_000 + (second - hostSites.first) * portsEach
  const at = (rest: string) => `127.${second}.${rest}`
  const last: Readonly<Record<Place, string>> = {
    node: '0.1',
    'node-2': '0.2',
    outside: '0.100',
    'client-pod': '1.10',
    'pod-1': '1.21',
    'pod-2': '1.22',
    'pod-3': '1.23',
    'remote-pod': '2.10',
    'pod-4': '2.24',
    'pod-5': '2.25',
  }
  return {
    // Who asks without choosing an address on loopback has this one, and so has the proxy.
    addresses: byPlace((place) => [place === 'node' ? '127.0.0.1' : at(last[place])]),
    clusterCidr: at('0.0/18'),
    podCidrs: { node: [at('1.0/24')], 'node-2': [at('2.0/24')] },
    serviceCidrs: [at('96.0/20')],
    nodePorts: { from: firstPort, to: firstPort + portsEach - 1 },
    loadBalancers: at('113.'),
    api: { host: at('0.1'), port: 6443 },
    // Ports below 1024 are for root.
    ports: { web: 8000, echo: 7000 },
    config: {
      clusterCIDR: at('0.0/18'),
      nodePortAddresses: ['127.0.0.0/8'],
      'userspace.portals': 'addresses',
    },
    senders: ['client-pod', 'node', 'backend'],
    interfaces: {
      'client-pod': undefined,
      node: undefined,
      outside: undefined,
      backend: undefined,
    },
    limits: [
      `There are no rights over a network here, so both nodes and all pods are programs of this machine, each on an address of ${at('0.0/16')}.`,
      'Only userspace mode runs: without a rule, kube-proxy itself listens at the addresses of Services. What the other modes would make can be read under Rules.',
      'Nobody can send from outside, as 127.0.0.0/8 ends at this machine; node ports answer at 127.0.0.1 only.',
    ],
    built: `two nodes with pods out of programs on ${at('0.0/16')} of this machine`,
  }
}

function byPlace(
  list: (place: Place) => readonly string[],
): Readonly<Record<Place, readonly string[]>> {
  const entries = places.map((place): [Place, readonly string[]] => [place, list(place)])
  return Object.fromEntries(entries) as Record<Place, readonly string[]>
}

/** The main address of a place, IPv4. */
export function addressIn(site: Site, place: Place): string {
  return site.addresses[place][0] ?? ''
}
