import type { NewObject } from '../apiserver/object.js'
import type { ClusterLayout } from './test-bed.js'

/** The Node objects of a cluster. */
export function nodesOf(layout: ClusterLayout): readonly NewObject[] {
  return (['node', 'node-2'] as const).map((place, index) => ({
    apiVersion: 'v1',
    kind: 'Node',
    metadata: {
      name: `node-${index + 1}`,
      labels: {
        'kubernetes.io/hostname': `node-${index + 1}`,
        'topology.kubernetes.io/zone': `zone-${index + 1}`,
      },
    },
    spec: { podCIDRs: layout.podCidrs[place] },
    // The first address of each family.
    status: {
      conditions: [
        {
          type: 'Ready',
          status: 'True',
          reason: 'KubeletReady',
          message: 'the playground runs pods here',
        },
      ],
      nodeInfo: { kubeletVersion: 'playground' },
      capacity: { pods: String(layout.rooms[`node-${index + 1}`]?.length ?? 0) },
      allocatable: { pods: String(layout.rooms[`node-${index + 1}`]?.length ?? 0) },
      addresses: layout.addresses[place]
        .slice(0, 2)
        .map((address) => ({ type: 'InternalIP', address })),
    },
  }))
}
