import { clusterColumns } from './columns/cluster.js'
import type { KindColumns } from './columns/column.js'
import { serviceColumns } from './columns/services.js'
import { workloadColumns } from './columns/workloads.js'
import { listAt, numberAt, objectAt, textAt } from './json.js'
import type { KubeObject } from './object.js'
import { resource, type ResourceKind, type StoredForm } from './resources.js'

const cluster = { namespaced: false } as const
const hasStatus = { subresources: ['status'] } as const
const counts = { countsGenerations: true } as const
const networking = 'networking.k8s.io/v1'
const rbac = 'rbac.authorization.k8s.io/v1'
/** Names such as `system:node-proxier`. */
const rbacName = { nameRule: 'path' } as const

/** Fields of events.k8s.io/v1 with their names in v1. All others have the same name in both. */
const renamed: readonly (readonly [current: string, stored: string])[] = [
  ['regarding', 'involvedObject'],
  ['note', 'message'],
  ['reportingController', 'reportingComponent'],
  ['deprecatedSource', 'source'],
  ['deprecatedFirstTimestamp', 'firstTimestamp'],
  ['deprecatedLastTimestamp', 'lastTimestamp'],
  ['deprecatedCount', 'count'],
]

/** Events are one set of objects that two API groups show. They are stored in the form of v1. */
const eventForm: StoredForm = {
  collection: 'events',
  toStored: (object) => ({ ...rename(object, new Map(renamed)), apiVersion: 'v1' }),
  fromStored: (object) => ({
    ...rename(object, new Map(renamed.map(([current, stored]) => [stored, current]))),
    apiVersion: 'events.k8s.io/v1',
  }),
}

function rename(object: KubeObject, names: ReadonlyMap<string, string>): KubeObject {
  const { kind, apiVersion, metadata, ...rest } = object
  const entries = Object.entries(rest).map(
    ([field, value]) => [names.get(field) ?? field, value] as const,
  )
  return { kind, apiVersion, metadata, ...Object.fromEntries(entries) }
}

/** Kinds that run pods in a real cluster. */
const workload = {
  ...counts,
  ...hasStatus,
  categories: ['all'],
  caution: 'is stored, but its pods do not run here; only Deployments and ReplicaSets run pods',
} as const

const autoscaler = {
  ...counts,
  ...hasStatus,
  caution: 'is stored, but nothing scales here; use kubectl scale',
} as const

/** In v1 the use of the processor is the only metric, and a field of its own. */
const autoscalerForm: StoredForm = {
  collection: 'horizontalpodautoscalers.autoscaling',
  toStored: (object) => {
    const { targetCPUUtilizationPercentage: averageUtilization, ...spec } = objectAt(object, 'spec')
    const target = { type: 'Utilization', averageUtilization }
    const metrics = [{ type: 'Resource', resource: { name: 'cpu', target } }]
    const full = averageUtilization === undefined ? spec : { ...spec, metrics }
    return { ...object, apiVersion: 'autoscaling/v2', spec: full }
  },
  fromStored: (object) => {
    const { metrics: _metrics, ...spec } = objectAt(object, 'spec')
    const targetCPUUtilizationPercentage = listAt(object, 'spec', 'metrics')
      .filter((metric) => textAt(metric, 'resource', 'name') === 'cpu')
      .map((metric) => numberAt(metric, 'resource', 'target', 'averageUtilization'))[0]
    const shown = { ...spec, targetCPUUtilizationPercentage }
    return { ...object, apiVersion: 'autoscaling/v1', spec: shown }
  },
}

/** What `kubectl scale` changes. */
const scalable = { ...counts, subresources: ['status', 'scale'], categories: ['all'] } as const

/** Kinds of the Prometheus operator, served without a definition: many manifests have them. */
const monitoring = { ...counts, isCustom: true, categories: ['prometheus-operator'] }

/** A further kind is one more row here. */
const kinds: readonly ResourceKind[] = [
  // Read by the proxy.
  resource('v1', 'Service', 'services svc', {
    ...hasStatus,
    categories: ['all'],
    nameRule: 'service',
  }),
  resource('discovery.k8s.io/v1', 'EndpointSlice', 'endpointslices', counts),
  resource('v1', 'Node', 'nodes no', { ...cluster, ...hasStatus, keepsFirstStatus: true }),
  resource(networking, 'ServiceCIDR', 'servicecidrs', { ...cluster, ...hasStatus }),
  // What the small controllers work on.
  resource('v1', 'Namespace', 'namespaces ns', { ...cluster, ...hasStatus, nameRule: 'label' }),
  resource('v1', 'Pod', 'pods po', { ...hasStatus, categories: ['all'] }),
  resource('apps/v1', 'Deployment', 'deployments deploy', scalable),
  // Written by clients, read by people.
  resource('v1', 'Endpoints', 'endpoints ep'),
  resource('v1', 'Event', 'events ev'),
  resource('events.k8s.io/v1', 'Event', 'events ev', { storedForm: eventForm }),
  resource(
    'apiextensions.k8s.io/v1',
    'CustomResourceDefinition',
    'customresourcedefinitions crd crds',
    { ...cluster, ...counts, ...hasStatus },
  ),
  // Stored, so that ordinary manifests apply. Only ReplicaSets have a controller.
  resource('v1', 'ConfigMap', 'configmaps cm'),
  resource('v1', 'Secret', 'secrets'),
  resource('v1', 'ServiceAccount', 'serviceaccounts sa'),
  resource('v1', 'PersistentVolume', 'persistentvolumes pv', { ...cluster, ...hasStatus }),
  resource('v1', 'PersistentVolumeClaim', 'persistentvolumeclaims pvc', hasStatus),
  resource('v1', 'LimitRange', 'limitranges limits'),
  resource('v1', 'ResourceQuota', 'resourcequotas quota', hasStatus),
  resource('apps/v1', 'DaemonSet', 'daemonsets ds', workload),
  resource('apps/v1', 'ReplicaSet', 'replicasets rs', scalable),
  resource('apps/v1', 'StatefulSet', 'statefulsets sts', { ...workload, ...scalable }),
  resource('batch/v1', 'Job', 'jobs', workload),
  resource('batch/v1', 'CronJob', 'cronjobs cj', workload),
  resource('autoscaling/v2', 'HorizontalPodAutoscaler', 'horizontalpodautoscalers hpa', autoscaler),
  resource('autoscaling/v1', 'HorizontalPodAutoscaler', 'horizontalpodautoscalers hpa', {
    ...autoscaler,
    storedForm: autoscalerForm,
  }),
  resource('policy/v1', 'PodDisruptionBudget', 'poddisruptionbudgets pdb', {
    ...counts,
    ...hasStatus,
  }),
  resource(networking, 'NetworkPolicy', 'networkpolicies netpol', {
    ...counts,
    caution: 'is stored, but it does not filter packets here',
  }),
  resource(networking, 'Ingress', 'ingresses ing', { ...counts, ...hasStatus }),
  resource(networking, 'IngressClass', 'ingressclasses', { ...cluster, ...counts }),
  resource('scheduling.k8s.io/v1', 'PriorityClass', 'priorityclasses pc', cluster),
  resource('storage.k8s.io/v1', 'StorageClass', 'storageclasses sc', cluster),
  resource('coordination.k8s.io/v1', 'Lease', 'leases'),
  resource(rbac, 'ClusterRole', 'clusterroles', { ...cluster, ...rbacName }),
  resource(rbac, 'ClusterRoleBinding', 'clusterrolebindings', { ...cluster, ...rbacName }),
  resource(rbac, 'Role', 'roles', rbacName),
  resource(rbac, 'RoleBinding', 'rolebindings', rbacName),
  resource('monitoring.coreos.com/v1', 'PodMonitor', 'podmonitors pmon', monitoring),
  resource('monitoring.coreos.com/v1', 'ServiceMonitor', 'servicemonitors smon', monitoring),
  resource('monitoring.coreos.com/v1', 'PrometheusRule', 'prometheusrules promrule', monitoring),
]

const columns: KindColumns = { ...clusterColumns, ...serviceColumns, ...workloadColumns }

/** What the server serves by default. */
export const defaultResources: readonly ResourceKind[] = kinds.map((kind) => ({
  ...kind,
  columns: columns[kind.kind] ?? kind.columns,
}))
