import {
  bindingColumns,
  configMapColumns,
  eventColumns,
  namespaceColumns,
  nodeColumns,
  secretColumns,
  serviceAccountColumns,
} from './columns/cluster.js'
import { createdColumns } from './columns/column.js'
import {
  endpointSliceColumns,
  endpointsColumns,
  serviceCidrColumns,
  serviceColumns,
} from './columns/services.js'
import {
  daemonSetColumns,
  deploymentColumns,
  podColumns,
  replicaSetColumns,
} from './columns/workloads.js'
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

/** Kinds of the Prometheus operator, served without a definition: many manifests have them. */
const monitoring = { ...counts, isCustom: true, categories: ['prometheus-operator'] }

/** Kinds that are stored, so that ordinary manifests apply. Only ReplicaSets have a controller. */
const storedResources: readonly ResourceKind[] = [
  resource('v1', 'ConfigMap', 'configmaps cm', { columns: configMapColumns }),
  resource('v1', 'Secret', 'secrets', { columns: secretColumns }),
  resource('v1', 'ServiceAccount', 'serviceaccounts sa', { columns: serviceAccountColumns }),
  resource('v1', 'PersistentVolume', 'persistentvolumes pv', { ...cluster, ...hasStatus }),
  resource('v1', 'PersistentVolumeClaim', 'persistentvolumeclaims pvc', hasStatus),
  resource('v1', 'LimitRange', 'limitranges limits'),
  resource('v1', 'ResourceQuota', 'resourcequotas quota', hasStatus),
  resource('apps/v1', 'DaemonSet', 'daemonsets ds', { ...workload, columns: daemonSetColumns }),
  resource('apps/v1', 'ReplicaSet', 'replicasets rs', {
    ...counts,
    subresources: ['status', 'scale'],
    categories: ['all'],
    columns: replicaSetColumns,
  }),
  resource('apps/v1', 'StatefulSet', 'statefulsets sts', {
    ...workload,
    subresources: ['status', 'scale'],
  }),
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
  resource(rbac, 'ClusterRole', 'clusterroles', {
    ...cluster,
    ...rbacName,
    columns: createdColumns,
  }),
  resource(rbac, 'ClusterRoleBinding', 'clusterrolebindings', {
    ...cluster,
    ...rbacName,
    columns: bindingColumns,
  }),
  resource(rbac, 'Role', 'roles', { ...rbacName, columns: createdColumns }),
  resource(rbac, 'RoleBinding', 'rolebindings', { ...rbacName, columns: bindingColumns }),
  resource('monitoring.coreos.com/v1', 'PodMonitor', 'podmonitors pmon', monitoring),
  resource('monitoring.coreos.com/v1', 'ServiceMonitor', 'servicemonitors smon', monitoring),
  resource('monitoring.coreos.com/v1', 'PrometheusRule', 'prometheusrules promrule', monitoring),
]

/** What the server serves by default. A further kind is one more row here. */
export const defaultResources: readonly ResourceKind[] = [
  // Read by the proxy.
  resource('v1', 'Service', 'services svc', {
    ...hasStatus,
    categories: ['all'],
    nameRule: 'service',
    columns: serviceColumns,
  }),
  resource('discovery.k8s.io/v1', 'EndpointSlice', 'endpointslices', {
    ...counts,
    columns: endpointSliceColumns,
  }),
  resource('v1', 'Node', 'nodes no', {
    ...cluster,
    ...hasStatus,
    keepsFirstStatus: true,
    columns: nodeColumns,
  }),
  resource(networking, 'ServiceCIDR', 'servicecidrs', {
    ...cluster,
    ...hasStatus,
    columns: serviceCidrColumns,
  }),
  // What the small controllers work on.
  resource('v1', 'Namespace', 'namespaces ns', {
    ...cluster,
    ...hasStatus,
    nameRule: 'label',
    columns: namespaceColumns,
  }),
  resource('v1', 'Pod', 'pods po', { ...hasStatus, categories: ['all'], columns: podColumns }),
  resource('apps/v1', 'Deployment', 'deployments deploy', {
    ...counts,
    subresources: ['status', 'scale'],
    categories: ['all'],
    columns: deploymentColumns,
  }),
  // Written by clients, read by people.
  resource('v1', 'Endpoints', 'endpoints ep', { columns: endpointsColumns }),
  resource('v1', 'Event', 'events ev', { columns: eventColumns }),
  resource('events.k8s.io/v1', 'Event', 'events ev', {
    storedForm: eventForm,
    columns: eventColumns,
  }),
  resource(
    'apiextensions.k8s.io/v1',
    'CustomResourceDefinition',
    'customresourcedefinitions crd crds',
    {
      ...cluster,
      ...counts,
      ...hasStatus,
      columns: createdColumns,
    },
  ),
  ...storedResources,
]
