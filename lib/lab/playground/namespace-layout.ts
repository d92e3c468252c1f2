import { addresses, bridgeName, podAddress, ranges, uplinkName } from '../world/topology.js'
import { byPlace, roomsWith, type ClusterLayout } from './test-bed.js'

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
  interfaces: {
    'client-pod': bridgeName,
    node: undefined,
    outside: uplinkName,
    backend: bridgeName,
  },
  limits: [],
  built: 'two nodes with pods out of network namespaces',
}
