import * as columns from './columns.js'
import type { Column } from './columns.js'
import { eventForm, type StoredForm } from './events.js'
import type { NameRule } from './names.js'
import type { KubeObject } from './object.js'

/** One served resource: everything generic about a kind is read from here. */
export interface ResourceKind {
  /** Empty for the core group. */
  readonly group: string
  readonly version: string
  readonly kind: string
  readonly plural: string
  readonly singular: string
  readonly shortNames: readonly string[]
  readonly namespaced: boolean
  readonly inAll: boolean
  readonly subresources: readonly ('status' | 'scale')[]
  /** metadata.generation grows with each change of what is not status. */
  readonly countsGenerations: boolean
  readonly nameRule: NameRule
  readonly columns: readonly Column[]
  /** The kind is another view of objects that are stored in this form. */
  readonly storedForm?: StoredForm
}

type Extra = Partial<Omit<ResourceKind, 'group' | 'version' | 'kind' | 'plural'>>

/** A row of the table; what is not said is the common case: namespaced, no subresource. */
export function resource(
  groupVersion: string,
  kind: string,
  plural: string,
  extra: Extra = {},
): ResourceKind {
  const [group = '', version] = groupVersion.split('/')
  return {
    group: version === undefined ? '' : group,
    version: version ?? group,
    kind,
    plural,
    singular: kind.toLowerCase(),
    shortNames: [],
    namespaced: true,
    inAll: false,
    subresources: [],
    countsGenerations: false,
    nameRule: 'subdomain',
    columns: columns.defaultColumns,
    ...extra,
  }
}

const cluster = { namespaced: false } as const
const rbac = 'rbac.authorization.k8s.io/v1'
/** Names such as `system:node-proxier`. */
const rbacName = { nameRule: 'path' } as const

/** What the server serves by default. A further kind is one more row here. */
export const defaultResources: readonly ResourceKind[] = [
  // Read by the proxy.
  resource('v1', 'Service', 'services', {
    shortNames: ['svc'],
    inAll: true,
    subresources: ['status'],
    nameRule: 'service',
    columns: columns.serviceColumns,
  }),
  resource('discovery.k8s.io/v1', 'EndpointSlice', 'endpointslices', {
    countsGenerations: true,
    columns: columns.endpointSliceColumns,
  }),
  resource('v1', 'Node', 'nodes', {
    ...cluster,
    shortNames: ['no'],
    subresources: ['status'],
    columns: columns.nodeColumns,
  }),
  resource('networking.k8s.io/v1', 'ServiceCIDR', 'servicecidrs', {
    ...cluster,
    subresources: ['status'],
    columns: columns.serviceCidrColumns,
  }),
  // What the small controllers work on.
  resource('v1', 'Namespace', 'namespaces', {
    ...cluster,
    shortNames: ['ns'],
    subresources: ['status'],
    nameRule: 'label',
    columns: columns.namespaceColumns,
  }),
  resource('v1', 'Pod', 'pods', {
    shortNames: ['po'],
    inAll: true,
    subresources: ['status'],
    columns: columns.podColumns,
  }),
  resource('apps/v1', 'Deployment', 'deployments', {
    shortNames: ['deploy'],
    inAll: true,
    subresources: ['status', 'scale'],
    countsGenerations: true,
    columns: columns.deploymentColumns,
  }),
  // Written by clients, read by people.
  resource('v1', 'Endpoints', 'endpoints', {
    shortNames: ['ep'],
    columns: columns.endpointsColumns,
  }),
  resource('v1', 'Event', 'events', { shortNames: ['ev'], columns: columns.eventColumns }),
  resource('events.k8s.io/v1', 'Event', 'events', {
    shortNames: ['ev'],
    storedForm: eventForm,
    columns: columns.eventColumns,
  }),
  // Only stored, so that ordinary manifests apply; no controller looks at them.
  resource('v1', 'ConfigMap', 'configmaps', {
    shortNames: ['cm'],
    columns: columns.configMapColumns,
  }),
  resource('v1', 'Secret', 'secrets', { columns: columns.secretColumns }),
  resource('v1', 'ServiceAccount', 'serviceaccounts', {
    shortNames: ['sa'],
    columns: columns.serviceAccountColumns,
  }),
  resource('apps/v1', 'DaemonSet', 'daemonsets', {
    shortNames: ['ds'],
    inAll: true,
    subresources: ['status'],
    countsGenerations: true,
    columns: columns.daemonSetColumns,
  }),
  resource('apps/v1', 'ReplicaSet', 'replicasets', {
    shortNames: ['rs'],
    inAll: true,
    subresources: ['status', 'scale'],
    countsGenerations: true,
    columns: columns.replicaSetColumns,
  }),
  resource('coordination.k8s.io/v1', 'Lease', 'leases'),
  resource(rbac, 'ClusterRole', 'clusterroles', {
    ...cluster,
    ...rbacName,
    columns: columns.createdColumns,
  }),
  resource(rbac, 'ClusterRoleBinding', 'clusterrolebindings', {
    ...cluster,
    ...rbacName,
    columns: columns.bindingColumns,
  }),
  resource(rbac, 'Role', 'roles', { ...rbacName, columns: columns.createdColumns }),
  resource(rbac, 'RoleBinding', 'rolebindings', { ...rbacName, columns: columns.bindingColumns }),
]

export function apiVersionOf(kind: ResourceKind): string {
  return kind.group === '' ? kind.version : `${kind.group}/${kind.version}`
}

/** The name of a kind's collection in the store. */
export function collectionOf(kind: ResourceKind): string {
  if (kind.storedForm) return kind.storedForm.collection
  return kind.group === '' ? kind.plural : `${kind.plural}.${kind.group}`
}

/** A stored object as this kind shows it. */
export function shownAs(kind: ResourceKind, object: KubeObject): KubeObject {
  return kind.storedForm ? kind.storedForm.fromStored(object) : object
}

/** The served kinds, found by path or by object. */
export class ResourceTable {
  readonly all: readonly ResourceKind[]
  readonly #byPath: ReadonlyMap<string, ResourceKind>
  readonly #byKind: ReadonlyMap<string, ResourceKind>

  constructor(all: readonly ResourceKind[]) {
    this.all = all
    this.#byPath = new Map(all.map((kind) => [`${apiVersionOf(kind)}/${kind.plural}`, kind]))
    this.#byKind = new Map(all.map((kind) => [`${apiVersionOf(kind)}/${kind.kind}`, kind]))
  }

  byPath(apiVersion: string, plural: string): ResourceKind | undefined {
    return this.#byPath.get(`${apiVersion}/${plural}`)
  }

  byKind(apiVersion: string, kind: string): ResourceKind | undefined {
    return this.#byKind.get(`${apiVersion}/${kind}`)
  }
}
