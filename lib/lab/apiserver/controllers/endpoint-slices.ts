import type { IpFamily } from '../../../state/ip.js'
import { equalJson, listAt, textAt, type JsonObject } from '../json.js'
import type { Clients, KindClient } from '../kind-client.js'
import type { KubeObject } from '../object.js'
import { collectionKey, keyOf, type StoreEvent } from '../store.js'
import { controller, ownKey, type Controller, type ControllerDeps } from './controller.js'
import {
  byPorts,
  endpointOf,
  hasSelector,
  managedBy,
  newSlice,
  portsOf,
  selecting,
  selects,
  serviceName,
  type EndpointContext,
} from './endpoints.js'

const managerName = 'endpointslice-controller.k8s.io'
const headless = 'service.kubernetes.io/headless'
const triggerTime = 'endpoints.kubernetes.io/last-change-trigger-time'

/** The most endpoints in a slice: the default of the real controller. */
const longestSlice = 100

const zoneLabel = 'topology.kubernetes.io/zone'

/** Writes EndpointSlices from the pods that a Service selects. */
export function endpointSliceController(deps: ControllerDeps): Controller {
  return controller(deps, (clients) => {
    const { services, slices, pods, nodes } = clients
    const managed = new ManagedSlices(slices)
    return {
      watched: [
        [services, ownKey],
        [pods, (event) => selecting(services, event)],
        // A slice that is deleted or edited by hand is restored.
        [slices, (event) => managed.follow(event)],
        [nodes, (event) => (zoneChanged(event) ? services.list().map(keyOf) : [])],
      ],
      reconcile(key) {
        const service = services.get(key)
        if (!service || !getsSlices(service)) return
        publish(clients, service, managed.of(key), deps.registry.now())
      },
    }
  })
}

/** The real controller leaves the slices of other Services as they are, also those that it made. */
function getsSlices(service: KubeObject): boolean {
  return hasSelector(service) && textAt(service, 'spec', 'type') !== 'ExternalName'
}

/** The slices this controller made, by Service: a search through all at each change is too slow. */
class ManagedSlices {
  readonly #slices: KindClient
  readonly #keys = new Map<string, Set<string>>()

  constructor(slices: KindClient) {
    this.#slices = slices
  }

  /** Records a change, and returns the key of its Service. */
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

  of(service: string): readonly KubeObject[] {
    return [...(this.#keys.get(service) ?? [])]
      .sort()
      .map((key) => this.#slices.get(key))
      .filter((slice) => slice !== undefined)
  }
}

function zoneChanged({ type, object, previous }: StoreEvent): boolean {
  return (
    type === 'DELETED' ||
    object.metadata.labels?.[zoneLabel] !== previous?.metadata.labels?.[zoneLabel]
  )
}

/** Writes the slices that a Service should have, and touches only those that differ. */
function publish(
  clients: Clients,
  service: KubeObject,
  present: readonly KubeObject[],
  now: number,
): void {
  const { slices } = clients
  const labels = labelsOf(service)
  const annotations = { [triggerTime]: new Date(now).toISOString() }
  const left = [...present]
  for (const slice of slicesOf(clients, service)) {
    const same = left.findIndex(
      (each) =>
        each['addressType'] === slice['addressType'] && equalJson(each['ports'], slice['ports']),
    )
    const [old] = same < 0 ? [] : left.splice(same, 1)
    if (old === undefined) {
      slices.create(newSlice(service, { labels, annotations }, slice))
    } else if (
      !equalJson(old['endpoints'], slice['endpoints']) ||
      !equalJson(old.metadata.labels, labels)
    ) {
      slices.update({ ...old, ...slice, metadata: { ...old.metadata, labels, annotations } })
    }
  }
  for (const slice of left) slices.delete(slice)
}

/** The slices of a Service: for each family, pods with the same port numbers together. */
function slicesOf(clients: Clients, service: KubeObject): readonly JsonObject[] {
  const pods = clients.pods
    .list()
    .filter((pod) => selects(service, pod))
    .filter((pod) => !['Succeeded', 'Failed'].includes(textAt(pod, 'status', 'phase')))
  const zoneOf = (node: string) => clients.nodes.get(node)?.metadata.labels?.[zoneLabel]
  const families = listAt(service, 'spec', 'ipFamilies').filter(
    (family): family is IpFamily => family === 'IPv4' || family === 'IPv6',
  )
  return families.flatMap((family) => slicesOfFamily(pods, family, { service, zoneOf }))
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

function slicesOfFamily(
  pods: readonly KubeObject[],
  family: IpFamily,
  context: EndpointContext,
): readonly JsonObject[] {
  const slices = byPorts(context.service, pods, family).flatMap(({ ports, members }) =>
    chunks(members.map(({ pod, ip }) => endpointOf(pod, ip, context))).map((endpoints) => ({
      addressType: family,
      ports,
      endpoints,
    })),
  )
  // An empty slice says that the selector matches no pod.
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
