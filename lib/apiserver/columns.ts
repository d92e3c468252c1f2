import { age } from './age.js'
import {
  at,
  isObject,
  listAt,
  numberAt,
  objectAt,
  textAt,
  textMapAt,
  textsAt,
  type Json,
} from './json.js'
import type { KubeObject } from './object.js'

/** One column of `kubectl get`; the server prints, kubectl only aligns. */
export interface Column {
  readonly name: string
  readonly type: 'string' | 'integer'
  /** 1: only with `-o wide`. */
  readonly priority: 0 | 1
  readonly cell: (object: KubeObject, now: number) => string | number
}

type Cell = Column['cell']

function column(name: string, cell: Cell): Column {
  return { name, type: 'string', priority: 0, cell }
}

function wide(name: string, cell: Cell): Column {
  return { name, type: 'string', priority: 1, cell }
}

function count(name: string, ...path: readonly string[]): Column {
  return { name, type: 'integer', priority: 0, cell: (object) => numberAt(object, ...path) ?? 0 }
}

const nameColumn = column('Name', (object) => object.metadata.name)
const ageColumn = column('Age', (object, now) => age(object.metadata.creationTimestamp ?? '', now))

export const defaultColumns: readonly Column[] = [nameColumn, ageColumn]

export const createdColumns: readonly Column[] = [
  nameColumn,
  column('Created At', (object) => object.metadata.creationTimestamp ?? '<unknown>'),
]

export const namespaceColumns: readonly Column[] = [
  nameColumn,
  column('Status', (object) => textAt(object, 'status', 'phase')),
  ageColumn,
]

export const serviceColumns: readonly Column[] = [
  nameColumn,
  column('Type', (object) => textAt(object, 'spec', 'type')),
  column('Cluster-IP', (object) => textAt(object, 'spec', 'clusterIP') || '<none>'),
  column('External-IP', externalIps),
  column('Port(s)', servicePorts),
  ageColumn,
  wide('Selector', (object) => pairs(textMapAt(object, 'spec', 'selector'))),
]

export const nodeColumns: readonly Column[] = [
  nameColumn,
  column('Status', nodeStatus),
  column('Roles', nodeRoles),
  ageColumn,
  column('Version', (object) => textAt(object, 'status', 'nodeInfo', 'kubeletVersion')),
  wide('Internal-IP', (object) => nodeAddress(object, 'InternalIP')),
  wide('External-IP', (object) => nodeAddress(object, 'ExternalIP')),
  ...['osImage', 'kernelVersion', 'containerRuntimeVersion'].map((field, index) =>
    wide(
      ['OS-Image', 'Kernel-Version', 'Container-Runtime'][index] ?? field,
      (object) => textAt(object, 'status', 'nodeInfo', field) || '<unknown>',
    ),
  ),
]

export const podColumns: readonly Column[] = [
  nameColumn,
  column('Ready', (object) => {
    const statuses = listAt(object, 'status', 'containerStatuses')
    const ready = statuses.filter((status) => at(status, 'ready') === true)
    return `${ready.length}/${listAt(object, 'spec', 'containers').length}`
  }),
  column('Status', podStatus),
  column('Restarts', (object) =>
    listAt(object, 'status', 'containerStatuses').reduce<number>(
      (sum, status) => sum + (numberAt(status, 'restartCount') ?? 0),
      0,
    ),
  ),
  ageColumn,
  wide('IP', (object) => textAt(object, 'status', 'podIP') || '<none>'),
  wide('Node', (object) => textAt(object, 'spec', 'nodeName') || '<none>'),
  wide('Nominated Node', () => '<none>'),
  wide('Readiness Gates', () => '<none>'),
]

export const endpointSliceColumns: readonly Column[] = [
  nameColumn,
  column('AddressType', (object) => textAt(object, 'addressType')),
  column('Ports', (object) =>
    few(
      listAt(object, 'ports').map((port) => String(numberAt(port, 'port') ?? '*')),
      '<unset>',
    ),
  ),
  column('Endpoints', (object) =>
    few(
      listAt(object, 'endpoints').flatMap((endpoint) => textsAt(endpoint, 'addresses')),
      '<unset>',
    ),
  ),
  ageColumn,
]

export const endpointsColumns: readonly Column[] = [
  nameColumn,
  column('Endpoints', (object) =>
    few(listAt(object, 'subsets').flatMap(subsetEndpoints), '<none>'),
  ),
  ageColumn,
]

export const serviceCidrColumns: readonly Column[] = [
  nameColumn,
  column('CIDRs', (object) => textsAt(object, 'spec', 'cidrs').join(',')),
  ageColumn,
]

export const deploymentColumns: readonly Column[] = [
  nameColumn,
  column(
    'Ready',
    (object) =>
      `${numberAt(object, 'status', 'readyReplicas') ?? 0}/${numberAt(object, 'spec', 'replicas') ?? 0}`,
  ),
  count('Up-to-date', 'status', 'updatedReplicas'),
  count('Available', 'status', 'availableReplicas'),
  ageColumn,
  ...templateColumns(),
]

export const replicaSetColumns: readonly Column[] = [
  nameColumn,
  count('Desired', 'spec', 'replicas'),
  count('Current', 'status', 'replicas'),
  count('Ready', 'status', 'readyReplicas'),
  ageColumn,
  ...templateColumns(),
]

export const daemonSetColumns: readonly Column[] = [
  nameColumn,
  count('Desired', 'status', 'desiredNumberScheduled'),
  count('Current', 'status', 'currentNumberScheduled'),
  count('Ready', 'status', 'numberReady'),
  count('Up-to-date', 'status', 'updatedNumberScheduled'),
  count('Available', 'status', 'numberAvailable'),
  column('Node Selector', (object) =>
    pairs(textMapAt(object, 'spec', 'template', 'spec', 'nodeSelector')),
  ),
  ageColumn,
  ...templateColumns(),
]

export const eventColumns: readonly Column[] = [
  column('Last Seen', (object, now) =>
    age(textAt(object, 'lastTimestamp') || textAt(object, 'eventTime'), now),
  ),
  column('Type', (object) => textAt(object, 'type')),
  column('Reason', (object) => textAt(object, 'reason')),
  column('Object', (object) => {
    const about = objectAt(object, 'involvedObject')
    return `${textAt(about, 'kind').toLowerCase()}/${textAt(about, 'name')}`
  }),
  column('Message', (object) => textAt(object, 'message').trim()),
  wide('Name', (object) => object.metadata.name),
]

export const configMapColumns: readonly Column[] = [nameColumn, column('Data', dataSize), ageColumn]

export const secretColumns: readonly Column[] = [
  nameColumn,
  column('Type', (object) => textAt(object, 'type')),
  column('Data', dataSize),
  ageColumn,
]

export const serviceAccountColumns: readonly Column[] = [
  nameColumn,
  column('Secrets', (object) => listAt(object, 'secrets').length),
  ageColumn,
]

export const bindingColumns: readonly Column[] = [
  nameColumn,
  column(
    'Role',
    (object) => `${textAt(object, 'roleRef', 'kind')}/${textAt(object, 'roleRef', 'name')}`,
  ),
  ageColumn,
]

function templateColumns(): readonly Column[] {
  const containers = (object: KubeObject) =>
    listAt(object, 'spec', 'template', 'spec', 'containers')
  return [
    wide('Containers', (object) =>
      containers(object)
        .map((entry) => textAt(entry, 'name'))
        .join(','),
    ),
    wide('Images', (object) =>
      containers(object)
        .map((entry) => textAt(entry, 'image'))
        .join(','),
    ),
    wide('Selector', (object) => pairs(textMapAt(object, 'spec', 'selector', 'matchLabels'))),
  ]
}

function dataSize(object: KubeObject): number {
  return Object.keys(objectAt(object, 'data')).length
}

function pairs(map: Readonly<Record<string, string>>): string {
  const entries = Object.entries(map).map(([key, value]) => `${key}=${value}`)
  return entries.length === 0 ? '<none>' : entries.sort().join(',')
}

/** The first three, and how many more there are. */
function few(entries: readonly string[], none: string): string {
  if (entries.length === 0) return none
  const shown = entries.slice(0, 3).join(',')
  return entries.length > 3 ? `${shown} + ${entries.length - 3} more...` : shown
}

function subsetEndpoints(subset: Json): readonly string[] {
  const ports = listAt(subset, 'ports').map((port) => numberAt(port, 'port') ?? 0)
  return listAt(subset, 'addresses').flatMap((address) => {
    const ip = textAt(address, 'ip')
    if (ports.length === 0) return [ip]
    return ports.map((port) => (ip.includes(':') ? `[${ip}]:${port}` : `${ip}:${port}`))
  })
}

function externalIps(object: KubeObject): string {
  const type = textAt(object, 'spec', 'type')
  if (type === 'ExternalName') return textAt(object, 'spec', 'externalName')
  const ingress = listAt(object, 'status', 'loadBalancer', 'ingress').map(
    (entry) => textAt(entry, 'ip') || textAt(entry, 'hostname'),
  )
  const listed = textsAt(object, 'spec', 'externalIPs')
  const all = type === 'LoadBalancer' ? [...ingress, ...listed] : listed
  if (all.length > 0) return all.join(',')
  return type === 'LoadBalancer' ? '<pending>' : '<none>'
}

function servicePorts(object: KubeObject): string {
  const ports = listAt(object, 'spec', 'ports').map((port) => {
    const nodePort = numberAt(port, 'nodePort') ?? 0
    const exposed = nodePort === 0 ? '' : `:${nodePort}`
    return `${numberAt(port, 'port') ?? 0}${exposed}/${textAt(port, 'protocol')}`
  })
  return ports.length === 0 ? '<none>' : ports.join(',')
}

function nodeStatus(object: KubeObject): string {
  const ready = listAt(object, 'status', 'conditions').find(
    (condition) => textAt(condition, 'type') === 'Ready',
  )
  const words =
    ready === undefined ? ['Unknown'] : [textAt(ready, 'status') === 'True' ? 'Ready' : 'NotReady']
  if (at(object, 'spec', 'unschedulable') === true) words.push('SchedulingDisabled')
  return words.join(',')
}

function nodeRoles(object: KubeObject): string {
  const prefix = 'node-role.kubernetes.io/'
  const roles = Object.keys(object.metadata.labels ?? {})
    .filter((label) => label.startsWith(prefix))
    .map((label) => label.slice(prefix.length))
  return roles.length === 0 ? '<none>' : roles.sort().join(',')
}

function nodeAddress(object: KubeObject, type: string): string {
  const found = listAt(object, 'status', 'addresses').find(
    (address) => isObject(address) && address['type'] === type,
  )
  return textAt(found, 'address') || '<none>'
}

function podStatus(object: KubeObject): string {
  if (object.metadata.deletionTimestamp !== undefined) return 'Terminating'
  const waiting = listAt(object, 'status', 'containerStatuses')
    .map((status) => textAt(status, 'state', 'waiting', 'reason'))
    .find((reason) => reason !== '')
  return waiting ?? (textAt(object, 'status', 'reason') || textAt(object, 'status', 'phase'))
}
