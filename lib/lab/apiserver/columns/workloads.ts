import { at, listAt, numberAt, textAt, textMapAt } from '../json.js'
import type { KubeObject } from '../object.js'
import {
  ageColumn,
  column,
  count,
  nameColumn,
  pairs,
  wide,
  type Column,
  type KindColumns,
} from './column.js'

/** A field of each container of the template. */
function ofContainers(name: string, field: string): Column {
  return wide(name, (object) =>
    listAt(object, 'spec', 'template', 'spec', 'containers')
      .map((entry) => textAt(entry, field))
      .join(','),
  )
}

const templateColumns: readonly Column[] = [
  ofContainers('Containers', 'name'),
  ofContainers('Images', 'image'),
  wide('Selector', (object) => pairs(textMapAt(object, 'spec', 'selector', 'matchLabels'))),
]

export const workloadColumns: KindColumns = {
  Pod: [
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
  ],
  Deployment: [
    nameColumn,
    column(
      'Ready',
      (object) =>
        `${numberAt(object, 'status', 'readyReplicas') ?? 0}/${numberAt(object, 'spec', 'replicas') ?? 0}`,
    ),
    count('Up-to-date', 'status', 'updatedReplicas'),
    count('Available', 'status', 'availableReplicas'),
    ageColumn,
    ...templateColumns,
  ],
  ReplicaSet: [
    nameColumn,
    count('Desired', 'spec', 'replicas'),
    count('Current', 'status', 'replicas'),
    count('Ready', 'status', 'readyReplicas'),
    ageColumn,
    ...templateColumns,
  ],
  DaemonSet: [
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
    ...templateColumns,
  ],
}

function podStatus(object: KubeObject): string {
  if (object.metadata.deletionTimestamp !== undefined) return 'Terminating'
  const waiting = listAt(object, 'status', 'containerStatuses')
    .map((status) => textAt(status, 'state', 'waiting', 'reason'))
    .find((reason) => reason !== '')
  return waiting ?? (textAt(object, 'status', 'reason') || textAt(object, 'status', 'phase'))
}
