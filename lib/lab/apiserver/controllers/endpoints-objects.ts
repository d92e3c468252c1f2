import { familyOf, type IpFamily } from '../../../state/ip.js'
import { at, equalJson, listAt, textAt, textMapAt, type Json, type JsonObject } from '../json.js'
import type { KubeObject } from '../object.js'
import { collectionOf, type ResourceKind } from '../resources.js'
import type { StoreEvent } from '../store.js'
import {
  isOwnedBy,
  kindsOf,
  ownerReference,
  ownKey,
  runController,
  type Controller,
  type ControllerDeps,
} from './controller.js'
import { portsOf, selecting, selects } from './endpoints.js'
import { isPodReady } from './deployments.js'

const serviceName = 'kubernetes.io/service-name'
const managedBy = 'endpointslice.kubernetes.io/managed-by'
const mirrorName = 'endpointslicemirroring-controller.k8s.io'
/** On Endpoints that this controller wrote: those need no mirror, their Service has slices. */
const skipMirror = 'endpointslice.kubernetes.io/skip-mirror'

const needed = {
  services: ['v1', 'Service'],
  endpoints: ['v1', 'Endpoints'],
  slices: ['discovery.k8s.io/v1', 'EndpointSlice'],
  pods: ['v1', 'Pod'],
} as const

type Kinds = Readonly<Record<keyof typeof needed, ResourceKind>>

/**
 * The old Endpoints objects, both ways: written for Services with a selector, and mirrored to
 * EndpointSlices where a person wrote them for a Service without one.
 */
export function endpointsController(deps: ControllerDeps): Controller {
  const { registry } = deps
  return {
    async run(signal) {
      const kinds = kindsOf(registry, needed)
      if (kinds === undefined) return
      const { services, endpoints, pods } = kinds
      const watched = [
        { kind: services, keysOf: ownKey },
        { kind: endpoints, keysOf: ownKey },
        { kind: pods, keysOf: (event: StoreEvent) => selecting(registry, services, event) },
      ]
      await runController(deps, watched, (key) => reconcile(deps, kinds, key), signal)
    },
  }
}

function reconcile(deps: ControllerDeps, kinds: Kinds, key: string): void {
  const { store } = deps.registry
  const service = store.get(collectionOf(kinds.services), key)
  const endpoints = store.get(collectionOf(kinds.endpoints), key)
  const hasSelector = Object.keys(textMapAt(service, 'spec', 'selector')).length > 0
  if (service !== undefined && hasSelector) write(deps, kinds, service, endpoints)
  if (endpoints !== undefined) mirror(deps, kinds, endpoints, hasSelector ? undefined : service)
}

function write(
  { registry }: ControllerDeps,
  kinds: Kinds,
  service: KubeObject,
  present: KubeObject | undefined,
): void {
  if (textAt(service, 'spec', 'type') === 'ExternalName') return
  const pods = registry.store
    .list(collectionOf(kinds.pods))
    .filter((pod) => selects(service, pod) && textAt(pod, 'status', 'podIP') !== '')
    .filter((pod) => pod.metadata.deletionTimestamp === undefined)
  const subsets = subsetsOf(service, pods)
  const { name, namespace } = service.metadata
  if (present === undefined) {
    registry.create(kinds.endpoints, {
      apiVersion: 'v1',
      kind: 'Endpoints',
      metadata: {
        name,
        namespace,
        labels: { ...service.metadata.labels, [skipMirror]: 'true' },
        ownerReferences: [ownerReference(service)],
      },
      subsets,
    })
  } else if (isOwnedBy(present, service) && !equalJson(present['subsets'], subsets)) {
    registry.update(kinds.endpoints, { ...present, subsets })
  }
}

/** Only addresses of the Service's first family: the old object knows no other. */
function subsetsOf(service: KubeObject, pods: readonly KubeObject[]): readonly Json[] {
  const family = listAt(service, 'spec', 'ipFamilies')[0]
  const isPublished = at(service, 'spec', 'publishNotReadyAddresses') === true
  const subsets = new Map<string, { ports: readonly Json[]; ready: Json[]; unready: Json[] }>()
  for (const pod of pods) {
    const ip = listAt(pod, 'status', 'podIPs')
      .map((entry) => textAt(entry, 'ip'))
      .find((text) => familyOf(text) === family)
    if (ip === undefined) continue
    const ports = portsOf(service, pod)
    const id = JSON.stringify(ports)
    const subset = subsets.get(id) ?? { ports, ready: [], unready: [] }
    const { name, namespace, uid } = pod.metadata
    const nodeName = textAt(pod, 'spec', 'nodeName')
    const address = { ip, nodeName, targetRef: { kind: 'Pod', name, namespace, uid } }
    if (isPublished || isPodReady(pod)) subset.ready.push(address)
    else subset.unready.push(address)
    subsets.set(id, subset)
  }
  return [...subsets.values()].map(({ ports, ready, unready }) => ({
    ...(ready.length === 0 ? {} : { addresses: ready }),
    ...(unready.length === 0 ? {} : { notReadyAddresses: unready }),
    ports,
  }))
}

/** One slice for each subset and family; `service` is undefined when there shall be none. */
function mirror(
  { registry }: ControllerDeps,
  kinds: Kinds,
  endpoints: KubeObject,
  service: KubeObject | undefined,
): void {
  const { name, namespace, labels = {} } = endpoints.metadata
  // Most are our own; looking through all slices for each of them would not scale.
  if (labels[skipMirror] === 'true') return
  const present = registry.store
    .list(collectionOf(kinds.slices))
    .filter((slice) => isOwnedBy(slice, endpoints))
  const wanted =
    service === undefined
      ? []
      : listAt(endpoints, 'subsets').flatMap((subset) =>
          (['IPv4', 'IPv6'] as const).flatMap((family) => mirrorSlice(subset, family)),
        )
  for (const [index, slice] of wanted.entries()) {
    const old = present[index]
    if (old?.['addressType'] === slice['addressType']) {
      registry.update(kinds.slices, { ...old, ...slice })
      continue
    }
    if (old) registry.delete(kinds.slices, namespace, old.metadata.name)
    registry.create(kinds.slices, {
      apiVersion: 'discovery.k8s.io/v1',
      kind: 'EndpointSlice',
      metadata: {
        generateName: `${name}-`,
        namespace,
        labels: { ...labels, [serviceName]: name, [managedBy]: mirrorName },
        ownerReferences: [ownerReference(endpoints)],
      },
      ...slice,
    })
  }
  for (const old of present.slice(wanted.length)) {
    registry.delete(kinds.slices, namespace, old.metadata.name)
  }
}

function mirrorSlice(subset: Json, family: IpFamily): readonly JsonObject[] {
  const endpointsIn = (field: string, ready: boolean) =>
    listAt(subset, field)
      .filter((address) => familyOf(textAt(address, 'ip')) === family)
      .map((address) => ({
        addresses: [textAt(address, 'ip')],
        conditions: { ready },
        ...(textAt(address, 'nodeName') === '' ? {} : { nodeName: textAt(address, 'nodeName') }),
      }))
  const endpoints = [...endpointsIn('addresses', true), ...endpointsIn('notReadyAddresses', false)]
  if (endpoints.length === 0) return []
  const ports = listAt(subset, 'ports').map((port) => ({
    name: textAt(port, 'name'),
    port: at(port, 'port') ?? null,
    protocol: textAt(port, 'protocol') || 'TCP',
  }))
  return [{ addressType: family, ports, endpoints }]
}
