import type { TrackerSettings } from '../../lib/state/tracker.js'

/** Raw API objects for tests: missing fields have the defaults of the API. */

export interface RawService {
  readonly name?: string
  readonly namespace?: string
  readonly spec?: object
  readonly status?: object
  readonly labels?: object
  readonly annotations?: object
}

export function rawService({
  name = 'web',
  namespace = 'default',
  spec,
  status,
  labels,
  annotations,
}: RawService = {}) {
  return {
    apiVersion: 'v1',
    kind: 'Service',
    metadata: { name, namespace, ...(labels && { labels }), ...(annotations && { annotations }) },
    spec: {
      type: 'ClusterIP',
      clusterIP: '10.96.0.10',
      clusterIPs: ['10.96.0.10'],
      ports: [{ name: 'http', protocol: 'TCP', port: 80, targetPort: 8080 }],
      ...spec,
    },
    ...(status && { status }),
  }
}

export interface RawSlice {
  readonly name?: string
  readonly service?: string
  readonly namespace?: string
  readonly addressType?: string
  readonly ports?: readonly object[]
  readonly endpoints?: readonly object[]
  readonly labels?: object
  readonly annotations?: object
}

export function rawSlice(slice: RawSlice = {}) {
  const { name = 'web-1', service = 'web', namespace = 'default', labels, annotations } = slice
  return {
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    metadata: {
      name,
      namespace,
      labels: { 'kubernetes.io/service-name': service, ...labels },
      ...(annotations && { annotations }),
    },
    addressType: slice.addressType ?? 'IPv4',
    ports: slice.ports ?? [{ name: 'http', protocol: 'TCP', port: 8080 }],
    endpoints: slice.endpoints ?? [endpoint('10.244.0.1')],
  }
}

export interface RawEndpoint {
  readonly ready?: boolean
  readonly serving?: boolean
  readonly terminating?: boolean
  readonly node?: string
  readonly zones?: readonly string[]
  readonly nodes?: readonly string[]
}

export function endpoint(ip: string, options: RawEndpoint = {}) {
  const { ready, serving, terminating, node = 'other', zones, nodes } = options
  return {
    addresses: [ip],
    conditions: {
      ...(ready !== undefined && { ready }),
      ...(serving !== undefined && { serving }),
      ...(terminating !== undefined && { terminating }),
    },
    nodeName: node,
    ...((zones ?? nodes) && {
      hints: {
        ...(zones && { forZones: zones.map((name) => ({ name })) }),
        ...(nodes && { forNodes: nodes.map((name) => ({ name })) }),
      },
    }),
  }
}

/** Settings of a tracker for tests that need no others. */
export const plainNode: TrackerSettings = {
  families: ['IPv4'],
  nodeName: 'here',
  bindAddress: '0.0.0.0',
  nodePortAddresses: [],
  detectLocal: { mode: 'NodeCIDR' },
  allowsExternalIps: true,
}
