import { familyOf, type IpFamily } from '../../../state/ip.js'
import { at, equalJson, listAt, textAt, type Json, type JsonObject } from '../json.js'
import type { Clients } from '../kind-client.js'
import { isReady, type KubeObject } from '../object.js'
import {
  controller,
  isOwnedBy,
  ownerReference,
  ownKey,
  type Controller,
  type ControllerDeps,
} from './controller.js'
import {
  byPorts,
  hasSelector,
  managedBy,
  newSlice,
  selecting,
  selects,
  serviceName,
} from './endpoints.js'

const mirrorName = 'endpointslicemirroring-controller.k8s.io'
/**
 * The label of Endpoints that this controller wrote. They need no mirror, because their Service has
 * slices.
 */
const skipMirror = 'endpointslice.kubernetes.io/skip-mirror'

/**
 * Writes the old Endpoints objects for Services with a selector. Endpoints that a user writes for a
 * Service without one are mirrored to EndpointSlices.
 */
export function endpointsController(deps: ControllerDeps): Controller {
  return controller(deps, (clients) => {
    const { services, endpoints, pods } = clients
    return {
      watched: [
        [services, ownKey],
        [endpoints, ownKey],
        [pods, (event) => selecting(services, event)],
      ],
      reconcile(key) {
        const service = services.get(key)
        const present = endpoints.get(key)
        const isSelecting = service !== undefined && hasSelector(service)
        if (isSelecting) write(clients, service, present)
        if (present) mirror(clients, present, isSelecting ? undefined : service)
      },
    }
  })
}

function write(clients: Clients, service: KubeObject, present: KubeObject | undefined): void {
  if (textAt(service, 'spec', 'type') === 'ExternalName') return
  const pods = clients.pods
    .list()
    .filter((pod) => selects(service, pod) && textAt(pod, 'status', 'podIP') !== '')
    .filter((pod) => pod.metadata.deletionTimestamp === undefined)
  const subsets = subsetsOf(service, pods)
  const { name, namespace } = service.metadata
  if (present === undefined) {
    clients.endpoints.create({
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
    clients.endpoints.update({ ...present, subsets })
  }
}

/** Only addresses of the Service's first family, because the old object has no other. */
function subsetsOf(service: KubeObject, pods: readonly KubeObject[]): readonly Json[] {
  const family = listAt(service, 'spec', 'ipFamilies')[0]
  const isPublished = at(service, 'spec', 'publishNotReadyAddresses') === true
  return byPorts(service, pods, family).map(({ ports, members }) => {
    const addressesOf = (shallBeReady: boolean) =>
      members
        .filter(({ pod }) => (isPublished || isReady(pod)) === shallBeReady)
        .map(({ pod, ip }) => {
          const { name, namespace, uid } = pod.metadata
          const nodeName = textAt(pod, 'spec', 'nodeName')
          return { ip, nodeName, targetRef: { kind: 'Pod', name, namespace, uid } }
        })
    const [addresses, notReadyAddresses] = [addressesOf(true), addressesOf(false)]
    return {
      ...(addresses.length === 0 ? {} : { addresses }),
      ...(notReadyAddresses.length === 0 ? {} : { notReadyAddresses }),
      ports,
    }
  })
}

/** One slice for each subset and family; `service` is undefined when none are wanted. */
function mirror({ slices }: Clients, endpoints: KubeObject, service: KubeObject | undefined): void {
  const { name, labels = {} } = endpoints.metadata
  // Most Endpoints are our own. Searching all slices for each of them would take too long.
  if (labels[skipMirror] === 'true') return
  const present = slices.list().filter((slice) => isOwnedBy(slice, endpoints))
  const wanted =
    service === undefined
      ? []
      : listAt(endpoints, 'subsets').flatMap((subset) =>
          (['IPv4', 'IPv6'] as const).flatMap((family) => mirrorSlice(subset, family)),
        )
  for (const [index, slice] of wanted.entries()) {
    const old = present[index]
    if (old?.['addressType'] === slice['addressType']) {
      slices.update({ ...old, ...slice })
      continue
    }
    if (old) slices.delete(old)
    const own = { ...labels, [serviceName]: name, [managedBy]: mirrorName }
    slices.create(newSlice(endpoints, { labels: own }, slice))
  }
  for (const old of present.slice(wanted.length)) slices.delete(old)
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
