import { familyOf, type IpFamily } from '../../../state/ip.js'
import { equalJson, listAt, textAt, textMapAt, type Json, type JsonObject } from '../json.js'
import type { KubeObject } from '../object.js'
import { collectionOf, type ResourceKind } from '../resources.js'
import { collectionKey, type StoreEvent } from '../store.js'
import {
  keyOf,
  kindsOf,
  ownerReference,
  ownKey,
  runController,
  type Controller,
  type ControllerDeps,
} from './controller.js'
import { endpointOf, portsOf, selecting, selects, type EndpointContext } from './endpoints.js'

const managedBy = 'endpointslice.kubernetes.io/managed-by'
const managerName = 'endpointslice-controller.k8s.io'
const serviceName = 'kubernetes.io/service-name'
const headless = 'service.kubernetes.io/headless'
const triggerTime = 'endpoints.kubernetes.io/last-change-trigger-time'

/** The real controller's default. */
const longestSlice = 100

const needed = {
  services: ['v1', 'Service'],
  slices: ['discovery.k8s.io/v1', 'EndpointSlice'],
  pods: ['v1', 'Pod'],
  nodes: ['v1', 'Node'],
} as const

type Kinds = Readonly<Record<keyof typeof needed, ResourceKind>>

/** Service selector + pods -> EndpointSlices. */
export function endpointSliceController(deps: ControllerDeps): Controller {
  const { registry } = deps
  return {
    async run(signal) {
      const kinds = kindsOf(registry, needed)
      if (kinds === undefined) return
      const { services, slices, pods, nodes } = kinds
      const managed = new ManagedSlices()
      const watched = [
        { kind: services, keysOf: ownKey },
        { kind: pods, keysOf: (event: StoreEvent) => selecting(registry, services, event) },
        // Whoever deletes or edits a slice by hand gets it back.
        { kind: slices, keysOf: (event: StoreEvent) => managed.follow(event) },
        { kind: nodes, keysOf: (event: StoreEvent) => ifZoneChanged(deps, services, event) },
      ]
      const reconcile = (key: string) => {
        const service = registry.store.get(collectionOf(services), key)
        if (service) publish(deps, kinds, service, managed.of(deps, slices, key))
      }
      await runController(deps, watched, reconcile, signal)
    },
  }
}

/** Services that had or have the pod in their selection. */
/** The slices this controller made, by Service: looking through all at each change would not scale. */
class ManagedSlices {
  readonly #keys = new Map<string, Set<string>>()

  /** Takes note of a change, and tells which Service it concerns. */
  follow({ type, object }: StoreEvent): readonly string[] {
    const name = object.metadata.labels?.[serviceName]
    if (name === undefined || object.metadata.labels?.[managedBy] !== managerName) return []
    const service = collectionKey(object.metadata.namespace, name)
    const keys = this.#keys.get(service) ?? new Set()
    if (type === 'DELETED') keys.delete(keyOf(object))
    else keys.add(keyOf(object))
    if (keys.size > 0) this.#keys.set(service, keys)
    else this.#keys.delete(service)
    return [service]
  }

  of(deps: ControllerDeps, slices: ResourceKind, service: string): readonly KubeObject[] {
    return [...(this.#keys.get(service) ?? [])]
      .sort()
      .map((key) => deps.registry.store.get(collectionOf(slices), key))
      .filter((slice) => slice !== undefined)
  }
}

function ifZoneChanged(deps: ControllerDeps, services: ResourceKind, event: StoreEvent) {
  const zone = (node: KubeObject | undefined) =>
    node?.metadata.labels?.['topology.kubernetes.io/zone']
  if (event.type !== 'DELETED' && zone(event.object) === zone(event.previous)) return []
  return deps.registry.store.list(collectionOf(services)).map(keyOf)
}

function publish(
  deps: ControllerDeps,
  kinds: Kinds,
  service: KubeObject,
  present: readonly KubeObject[],
): void {
  const { registry } = deps
  const wanted = slicesOf(deps, kinds, service)
  const left = [...present]
  for (const slice of wanted) {
    const same = left.findIndex(
      (each) =>
        each['addressType'] === slice['addressType'] && equalJson(each['ports'], slice['ports']),
    )
    const [old] = same < 0 ? [] : left.splice(same, 1)
    if (old === undefined) registry.create(kinds.slices, newSlice(deps, service, slice))
    else replace(deps, kinds, service, { old, slice })
  }
  for (const { metadata } of left) {
    registry.delete(kinds.slices, metadata.namespace, metadata.name)
  }
}

function newSlice(deps: ControllerDeps, service: KubeObject, slice: JsonObject): JsonObject {
  const { namespace, name } = service.metadata
  return {
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    metadata: {
      generateName: `${name}-`,
      namespace,
      labels: labelsOf(service),
      annotations: { [triggerTime]: new Date(deps.registry.now()).toISOString() },
      ownerReferences: [ownerReference(service)],
    },
    ...slice,
  }
}

function replace(
  { registry }: ControllerDeps,
  kinds: Kinds,
  service: KubeObject,
  { old, slice }: { readonly old: KubeObject; readonly slice: JsonObject },
): void {
  const labels = labelsOf(service)
  if (equalJson(old['endpoints'], slice['endpoints']) && equalJson(old.metadata.labels, labels))
    return
  const annotations = { [triggerTime]: new Date(registry.now()).toISOString() }
  registry.update(kinds.slices, {
    ...old,
    ...slice,
    metadata: { ...old.metadata, labels, annotations },
  })
}

function labelsOf(service: KubeObject): Readonly<Record<string, string>> {
  const isHeadless = textAt(service, 'spec', 'clusterIP') === 'None'
  return {
    ...service.metadata.labels,
    [serviceName]: service.metadata.name,
    [managedBy]: managerName,
    ...(isHeadless ? { [headless]: '' } : {}),
  }
}

/** What should be published: for each family, pods with the same port numbers together. */
function slicesOf(deps: ControllerDeps, kinds: Kinds, service: KubeObject): readonly JsonObject[] {
  const hasSelector = Object.keys(textMapAt(service, 'spec', 'selector')).length > 0
  if (!hasSelector || textAt(service, 'spec', 'type') === 'ExternalName') return []
  const { store } = deps.registry
  const pods = store
    .list(collectionOf(kinds.pods))
    .filter((pod) => selects(service, pod))
    .filter((pod) => !['Succeeded', 'Failed'].includes(textAt(pod, 'status', 'phase')))
  const context: EndpointContext = {
    service,
    zoneOf: (node) =>
      store.get(collectionOf(kinds.nodes), node)?.metadata.labels?.['topology.kubernetes.io/zone'],
  }
  const families = listAt(service, 'spec', 'ipFamilies').filter(
    (family): family is IpFamily => family === 'IPv4' || family === 'IPv6',
  )
  return families.flatMap((family) => slicesOfFamily(pods, family, context))
}

function slicesOfFamily(
  pods: readonly KubeObject[],
  family: IpFamily,
  context: EndpointContext,
): readonly JsonObject[] {
  const groups = new Map<string, { ports: readonly Json[]; endpoints: JsonObject[] }>()
  for (const pod of pods) {
    const ip = listAt(pod, 'status', 'podIPs')
      .map((entry) => textAt(entry, 'ip'))
      .concat(textAt(pod, 'status', 'podIP'))
      .find((text) => familyOf(text) === family)
    if (ip === undefined) continue
    const ports = portsOf(context.service, pod)
    const id = JSON.stringify(ports)
    const group = groups.get(id) ?? { ports, endpoints: [] }
    group.endpoints.push(endpointOf(pod, ip, context))
    groups.set(id, group)
  }
  const slices = [...groups.values()].flatMap(({ ports, endpoints }) =>
    chunks(endpoints).map((chunk) => ({ addressType: family, ports, endpoints: chunk })),
  )
  // An empty slice says: looked, and found nobody.
  if (slices.length > 0) return slices
  const ports = portsOf(context.service, undefined)
  return [{ addressType: family, ports, endpoints: [] }]
}

function chunks(endpoints: readonly JsonObject[]): readonly (readonly JsonObject[])[] {
  const sorted = endpoints.toSorted((left, right) =>
    textAt(left, 'targetRef', 'name') < textAt(right, 'targetRef', 'name') ? -1 : 1,
  )
  const count = Math.ceil(sorted.length / longestSlice)
  return Array.from({ length: count }, (_, index) =>
    sorted.slice(index * longestSlice, (index + 1) * longestSlice),
  )
}
