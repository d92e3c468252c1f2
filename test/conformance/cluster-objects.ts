import { addresses, ranges } from '../../lib/lab/world/topology.js'
import type { ServiceRange } from './case.js'
import type { Manifest } from './objects.js'

/** The objects of a case that belong to no Service: the node, and where ClusterIPs come from. */

export function nodeManifest(zone: string | null | undefined): Manifest {
  return {
    apiVersion: 'v1',
    kind: 'Node',
    metadata: {
      name: 'node',
      labels: zone === null || zone === undefined ? {} : { 'topology.kubernetes.io/zone': zone },
    },
    spec: { podCIDR: ranges.pods.IPv4, podCIDRs: Object.values(ranges.pods) },
    status: {
      addresses: Object.values(addresses.node[0]).map((address) => ({
        type: 'InternalIP',
        address: String(address),
      })),
    },
  }
}

const rangesOfServices: Readonly<Record<ServiceRange, readonly string[]>> = {
  first: Object.values(ranges.services),
  second: ['10.97.0.0/16', 'fd00:10:97::/112'],
}

export function serviceCidrManifest(range: ServiceRange): Manifest {
  return {
    apiVersion: 'networking.k8s.io/v1',
    kind: 'ServiceCIDR',
    metadata: { name: range === 'first' ? 'kubernetes' : range },
    spec: { cidrs: rangesOfServices[range] },
  }
}
