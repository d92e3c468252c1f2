import type { NewObject } from '../apiserver/object.js'
import type { ClusterLayout } from './test-bed.js'

/** The resources of a small machine, to be shown. Nothing here uses them. */
const machine = { cpu: '2', memory: '4Gi' } as const

/** The Node objects of a cluster that begins now. */
export function nodesOf(layout: ClusterLayout, now = new Date()): readonly NewObject[] {
  const time = now.toISOString().replace(/\.\d+Z$/, 'Z')
  const times = { lastHeartbeatTime: time, lastTransitionTime: time }
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
    status: {
      conditions: [
        {
          type: 'Ready',
          status: 'True',
          reason: 'KubeletReady',
          message: 'the playground runs pods here',
          ...times,
        },
      ],
      nodeInfo: { kubeletVersion: 'playground' },
      capacity: { ...machine, pods: String(layout.rooms[`node-${index + 1}`]?.length ?? 0) },
      allocatable: { ...machine, pods: String(layout.rooms[`node-${index + 1}`]?.length ?? 0) },
      // The first address of each family.
      addresses: layout.addresses[place]
        .slice(0, 2)
        .map((address) => ({ type: 'InternalIP', address })),
    },
  }))
}

/** The lease that a kubelet makes when it begins, for `kubectl describe node`. Nobody renews it. */
export function leasesOf(layout: ClusterLayout): readonly NewObject[] {
  const now = new Date()
  return nodesOf(layout, now).map(({ metadata: { name } }) => ({
    apiVersion: 'coordination.k8s.io/v1',
    kind: 'Lease',
    metadata: { name, namespace: 'kube-node-lease' },
    spec: {
      holderIdentity: name,
      leaseDurationSeconds: 40,
      renewTime: now.toISOString().replace('Z', '000Z'),
    },
  }))
}
