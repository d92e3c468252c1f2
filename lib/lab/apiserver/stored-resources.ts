import {
  bindingColumns,
  configMapColumns,
  secretColumns,
  serviceAccountColumns,
} from './columns/cluster.js'
import { createdColumns } from './columns/column.js'
import { daemonSetColumns, replicaSetColumns } from './columns/workloads.js'
import { resource, type ResourceKind } from './resources.js'

/** Kinds that are only stored, so that ordinary manifests apply; no controller looks at them. */

const cluster = { namespaced: false } as const
const apps = 'apps/v1'
const batch = 'batch/v1'
const networking = 'networking.k8s.io/v1'
const rbac = 'rbac.authorization.k8s.io/v1'
/** Names such as `system:node-proxier`. */
const rbacName = { nameRule: 'path' } as const

/** What runs pods elsewhere. */
const workload = {
  categories: ['all'],
  subresources: ['status'],
  countsGenerations: true,
  caution: 'is stored, but nothing here runs its pods; of all workloads only Deployments run',
} as const

const withStatus = { subresources: ['status'], countsGenerations: true } as const

/** Served as if its definition had been applied, since manifests for monitoring come with these. */
const monitoring = { isCustom: true, countsGenerations: true, categories: ['prometheus-operator'] }

export const storedResources: readonly ResourceKind[] = [
  resource('v1', 'ConfigMap', 'configmaps', {
    shortNames: ['cm'],
    columns: configMapColumns,
  }),
  resource('v1', 'Secret', 'secrets', { columns: secretColumns }),
  resource('v1', 'ServiceAccount', 'serviceaccounts', {
    shortNames: ['sa'],
    columns: serviceAccountColumns,
  }),
  resource('v1', 'PersistentVolume', 'persistentvolumes', {
    ...cluster,
    shortNames: ['pv'],
    subresources: ['status'],
  }),
  resource('v1', 'PersistentVolumeClaim', 'persistentvolumeclaims', {
    shortNames: ['pvc'],
    subresources: ['status'],
  }),
  resource('v1', 'LimitRange', 'limitranges', { shortNames: ['limits'] }),
  resource('v1', 'ResourceQuota', 'resourcequotas', {
    shortNames: ['quota'],
    subresources: ['status'],
  }),
  resource(apps, 'DaemonSet', 'daemonsets', {
    ...workload,
    shortNames: ['ds'],
    columns: daemonSetColumns,
  }),
  resource(apps, 'ReplicaSet', 'replicasets', {
    ...workload,
    shortNames: ['rs'],
    subresources: ['status', 'scale'],
    columns: replicaSetColumns,
  }),
  resource(apps, 'StatefulSet', 'statefulsets', {
    ...workload,
    shortNames: ['sts'],
    subresources: ['status', 'scale'],
  }),
  resource(batch, 'Job', 'jobs', workload),
  resource(batch, 'CronJob', 'cronjobs', { ...workload, shortNames: ['cj'] }),
  resource('autoscaling/v2', 'HorizontalPodAutoscaler', 'horizontalpodautoscalers', {
    ...withStatus,
    shortNames: ['hpa'],
  }),
  resource('policy/v1', 'PodDisruptionBudget', 'poddisruptionbudgets', {
    ...withStatus,
    shortNames: ['pdb'],
  }),
  resource(networking, 'NetworkPolicy', 'networkpolicies', {
    shortNames: ['netpol'],
    countsGenerations: true,
    caution: 'is stored, but nothing here filters packets by it',
  }),
  resource(networking, 'Ingress', 'ingresses', { ...withStatus, shortNames: ['ing'] }),
  resource(networking, 'IngressClass', 'ingressclasses', { ...cluster, countsGenerations: true }),
  resource('scheduling.k8s.io/v1', 'PriorityClass', 'priorityclasses', {
    ...cluster,
    shortNames: ['pc'],
  }),
  resource('storage.k8s.io/v1', 'StorageClass', 'storageclasses', {
    ...cluster,
    shortNames: ['sc'],
  }),
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
  resource('monitoring.coreos.com/v1', 'PodMonitor', 'podmonitors', {
    ...monitoring,
    shortNames: ['pmon'],
  }),
  resource('monitoring.coreos.com/v1', 'ServiceMonitor', 'servicemonitors', {
    ...monitoring,
    shortNames: ['smon'],
  }),
  resource('monitoring.coreos.com/v1', 'PrometheusRule', 'prometheusrules', {
    ...monitoring,
    shortNames: ['promrule'],
  }),
]
