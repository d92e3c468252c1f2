import { eventColumns, namespaceColumns, nodeColumns } from './columns/cluster.js'
import { createdColumns } from './columns/column.js'
import {
  endpointSliceColumns,
  endpointsColumns,
  serviceCidrColumns,
  serviceColumns,
} from './columns/services.js'
import { deploymentColumns, podColumns } from './columns/workloads.js'
import { eventForm } from './events.js'
import { resource, type ResourceKind } from './resources.js'
import { storedResources } from './stored-resources.js'

const cluster = { namespaced: false } as const

/** What the server serves by default. A further kind is one more row here. */
export const defaultResources: readonly ResourceKind[] = [
  // Read by the proxy.
  resource('v1', 'Service', 'services', {
    shortNames: ['svc'],
    categories: ['all'],
    subresources: ['status'],
    nameRule: 'service',
    columns: serviceColumns,
  }),
  resource('discovery.k8s.io/v1', 'EndpointSlice', 'endpointslices', {
    countsGenerations: true,
    columns: endpointSliceColumns,
  }),
  resource('v1', 'Node', 'nodes', {
    ...cluster,
    shortNames: ['no'],
    subresources: ['status'],
    columns: nodeColumns,
  }),
  resource('networking.k8s.io/v1', 'ServiceCIDR', 'servicecidrs', {
    ...cluster,
    subresources: ['status'],
    columns: serviceCidrColumns,
  }),
  // What the small controllers work on.
  resource('v1', 'Namespace', 'namespaces', {
    ...cluster,
    shortNames: ['ns'],
    subresources: ['status'],
    nameRule: 'label',
    columns: namespaceColumns,
  }),
  resource('v1', 'Pod', 'pods', {
    shortNames: ['po'],
    categories: ['all'],
    subresources: ['status'],
    columns: podColumns,
  }),
  resource('apps/v1', 'Deployment', 'deployments', {
    shortNames: ['deploy'],
    categories: ['all'],
    subresources: ['status', 'scale'],
    countsGenerations: true,
    columns: deploymentColumns,
  }),
  // Written by clients, read by people.
  resource('v1', 'Endpoints', 'endpoints', {
    shortNames: ['ep'],
    columns: endpointsColumns,
  }),
  resource('v1', 'Event', 'events', { shortNames: ['ev'], columns: eventColumns }),
  resource('events.k8s.io/v1', 'Event', 'events', {
    shortNames: ['ev'],
    storedForm: eventForm,
    columns: eventColumns,
  }),
  resource('apiextensions.k8s.io/v1', 'CustomResourceDefinition', 'customresourcedefinitions', {
    ...cluster,
    shortNames: ['crd', 'crds'],
    subresources: ['status'],
    countsGenerations: true,
    columns: createdColumns,
  }),
  ...storedResources,
]
