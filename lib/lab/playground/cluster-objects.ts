import type { NewObject, KubeObject } from '../apiserver/object.js'
import { type ClusterLayout, addressIn } from './cluster-layout.js'
import { formatIp, parseCidr } from '../../state/ip.js'
import type { JsonObject } from '../apiserver/json.js'

export function nodesOf(layout: ClusterLayout, now = new Date()): readonly NewObject[] {
  const time = now.toISOString().replace(/\.\d+Z$/, 'Z')
  const times = { lastHeartbeatTime: time, lastTransitionTime: time }
  return (['node', 'node-2'] as const).map((place, index) => {
    const name = `node-${index + 1}`
    const labels = {
      'kubernetes.io/hostname': name,
      'topology.kubernetes.io/zone': `zone-${index + 1}`,
    }
    const reason = { reason: 'KubeletReady', message: 'the playground runs pods here' }
    // Processor and memory of a small machine are only shown. Nothing here uses them.
    const capacity = { cpu: '2', memory: '4Gi', pods: String(layout.rooms[name]?.length ?? 0) }
    // The first address of each family.
    const addresses = layout.addresses[place].slice(0, 2)
    return {
      apiVersion: 'v1',
      kind: 'Node',
      metadata: { name, labels },
      spec: { podCIDRs: layout.podCidrs[place] },
      status: {
        conditions: [{ type: 'Ready', status: 'True', ...reason, ...times }],
        nodeInfo: { kubeletVersion: 'playground' },
        capacity,
        allocatable: capacity,
        addresses: addresses.map((address) => ({ type: 'InternalIP', address })),
      },
    }
  })
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

/** Where the node finds the API server. */
export const apiPortOnNode = 6443

const apiService = 'kubernetes'

/** The Service of the API server, as every cluster has it: at the first address, without a selector. */
export function kubernetesService(layout: ClusterLayout): readonly NewObject[] {
  const { serviceCidrs, ports, api } = layout
  const range = parseCidr(serviceCidrs[0] ?? '')
  if (!range) return []
  // A server with an address of its own is used directly. Others are reached through the node.
  const address = api.port === apiPortOnNode ? api.host : addressIn(layout, 'node')
  const labels = { component: 'apiserver', provider: apiService }
  const port = { name: 'api', protocol: 'TCP' }
  return [
    {
      apiVersion: 'v1',
      kind: 'Service',
      metadata: { name: apiService, namespace: 'default', labels },
      spec: {
        clusterIP: formatIp(range.family, range.network + 1n),
        ports: [{ ...port, port: ports.kubernetes, targetPort: apiPortOnNode }],
      },
    },
    {
      apiVersion: 'discovery.k8s.io/v1',
      kind: 'EndpointSlice',
      metadata: {
        name: apiService,
        namespace: 'default',
        labels: { 'kubernetes.io/service-name': apiService },
      },
      addressType: 'IPv4',
      endpoints: [{ addresses: [address], conditions: { ready: true } }],
      ports: [{ ...port, port: apiPortOnNode }],
    },
  ]
}

/** Lessons are about the Services of learners, so the page does not list this one. */
export function isKubernetes({ kind, metadata }: KubeObject): boolean {
  if (kind !== 'Service' && kind !== 'EndpointSlice') return false
  return metadata.name === apiService && metadata.namespace === 'default'
}

export const webLabels = { app: 'web' }
/** The label of objects that an exercise adds. They are removed with it. */
export const exerciseLabel = 'playground/exercise'

/** The ports that the two Services lead to. */
const containerPorts = [
  { name: 'http', containerPort: 8080, protocol: 'TCP' },
  { name: 'echo', containerPort: 8080, protocol: 'UDP' },
] as const

/** The Deployment whose pods the playground and the tour talk to. */
export function webDeployment(replicas: number): NewObject {
  const template = {
    metadata: { labels: webLabels },
    spec: { containers: [{ name: 'web', image: 'built-in', ports: [...containerPorts] }] },
  }
  return {
    apiVersion: 'apps/v1',
    kind: 'Deployment',
    metadata: { name: 'web', namespace: 'default' },
    spec: { replicas, selector: { matchLabels: webLabels }, template },
  }
}

export function serviceOverWeb(name: string, spec: JsonObject): NewObject {
  return {
    apiVersion: 'v1',
    kind: 'Service',
    metadata: { name, namespace: 'default' },
    spec: { selector: webLabels, ...spec },
  }
}
