import { at, isObject, listAt, objectAt, textAt } from '../json.js'
import { conditionOf, isReady, type KubeObject } from '../object.js'
import {
  age,
  ageColumn,
  column,
  createdColumns,
  nameColumn,
  text,
  wide,
  type Column,
  type KindColumns,
} from './column.js'

const bindingColumns: readonly Column[] = [
  nameColumn,
  column(
    'Role',
    (object) => `${textAt(object, 'roleRef', 'kind')}/${textAt(object, 'roleRef', 'name')}`,
  ),
  ageColumn,
]

export const clusterColumns: KindColumns = {
  Namespace: [nameColumn, text('Status', 'status', 'phase'), ageColumn],
  Node: [
    nameColumn,
    column('Status', nodeStatus),
    column('Roles', nodeRoles),
    ageColumn,
    text('Version', 'status', 'nodeInfo', 'kubeletVersion'),
    wide('Internal-IP', (object) => nodeAddress(object, 'InternalIP')),
    wide('External-IP', (object) => nodeAddress(object, 'ExternalIP')),
    ...['osImage', 'kernelVersion', 'containerRuntimeVersion'].map((field, index) =>
      wide(
        ['OS-Image', 'Kernel-Version', 'Container-Runtime'][index] ?? field,
        (object) => textAt(object, 'status', 'nodeInfo', field) || '<unknown>',
      ),
    ),
  ],
  Event: [
    column('Last Seen', (object, now) =>
      age(textAt(object, 'lastTimestamp') || textAt(object, 'eventTime'), now),
    ),
    text('Type', 'type'),
    text('Reason', 'reason'),
    column('Object', (object) => {
      const about = objectAt(object, 'involvedObject')
      return `${textAt(about, 'kind').toLowerCase()}/${textAt(about, 'name')}`
    }),
    column('Message', (object) => textAt(object, 'message').trim()),
    wide('Name', (object) => object.metadata.name),
  ],
  ConfigMap: [nameColumn, column('Data', dataSize), ageColumn],
  Secret: [nameColumn, text('Type', 'type'), column('Data', dataSize), ageColumn],
  ServiceAccount: [
    nameColumn,
    column('Secrets', (object) => listAt(object, 'secrets').length),
    ageColumn,
  ],
  RoleBinding: bindingColumns,
  ClusterRoleBinding: bindingColumns,
  Role: createdColumns,
  ClusterRole: createdColumns,
  CustomResourceDefinition: createdColumns,
}

function dataSize(object: KubeObject): number {
  return Object.keys(objectAt(object, 'data')).length
}

function nodeStatus(object: KubeObject): string {
  const isKnown = conditionOf(object, 'Ready') !== undefined
  const words = [isReady(object) ? 'Ready' : isKnown ? 'NotReady' : 'Unknown']
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
