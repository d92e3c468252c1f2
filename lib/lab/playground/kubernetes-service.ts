import { addressIn, type ClusterLayout } from './test-bed.js'
import { formatIp, parseCidr } from '../../state/ip.js'
import type { KubeObject, NewObject } from '../apiserver/object.js'

/** Where the node finds the API server. */
export const apiPortOnNode = 6443

const name = 'kubernetes'

/** The Service of the API server, as every cluster has it: at the first address, without a selector. */
export function kubernetesService(layout: ClusterLayout): readonly NewObject[] {
  const { serviceCidrs, ports, api } = layout
  const range = parseCidr(serviceCidrs[0] ?? '')
  if (!range) return []
  // A server with an address of its own is used directly. Others are reached through the node.
  const address = api.port === apiPortOnNode ? api.host : addressIn(layout, 'node')
  const labels = { component: 'apiserver', provider: name }
  const port = { name: 'api', protocol: 'TCP' }
  return [
    {
      apiVersion: 'v1',
      kind: 'Service',
      metadata: { name, namespace: 'default', labels },
      spec: {
        clusterIP: formatIp(range.family, range.network + 1n),
        ports: [{ ...port, port: ports.kubernetes, targetPort: apiPortOnNode }],
      },
    },
    {
      apiVersion: 'discovery.k8s.io/v1',
      kind: 'EndpointSlice',
      metadata: { name, namespace: 'default', labels: { 'kubernetes.io/service-name': name } },
      addressType: 'IPv4',
      endpoints: [{ addresses: [address], conditions: { ready: true } }],
      ports: [{ ...port, port: apiPortOnNode }],
    },
  ]
}

/** Lessons are about the Services of learners, so the page does not list this one. */
export function isKubernetes({ kind, metadata }: KubeObject): boolean {
  if (kind !== 'Service' && kind !== 'EndpointSlice') return false
  return metadata.name === name && metadata.namespace === 'default'
}
