import { familyOf } from '../../../state/ip.js'
import { at, listAt, numberAt, textAt, textMapAt, type Json, type JsonObject } from '../json.js'
import type { KindClient } from '../kind-client.js'
import { isReady, type KubeObject } from '../object.js'
import { matchesLabels } from '../selectors.js'
import { keyOf, type StoreEvent } from '../store.js'
import { ownerReference } from './controller.js'

/** Labels of an EndpointSlice. */
export const serviceName = 'kubernetes.io/service-name'
export const managedBy = 'endpointslice.kubernetes.io/managed-by'

export interface EndpointContext {
  readonly service: KubeObject
  readonly zoneOf: (node: string) => string | undefined
}

/** A pod as one endpoint of a Service. */
export function endpointOf(pod: KubeObject, ip: string, context: EndpointContext): JsonObject {
  const { service, zoneOf } = context
  const terminating = pod.metadata.deletionTimestamp !== undefined
  const serving = isReady(pod)
  // S29: unready pods are published here by marking them ready.
  const isPublished = at(service, 'spec', 'publishNotReadyAddresses') === true
  const nodeName = textAt(pod, 'spec', 'nodeName')
  const zone = zoneOf(nodeName)
  const { namespace, name, uid } = pod.metadata
  return {
    addresses: [ip],
    conditions: { ready: isPublished || (serving && !terminating), serving, terminating },
    targetRef: { kind: 'Pod', namespace, name, uid },
    ...(nodeName === '' ? {} : { nodeName }),
    ...(zone === undefined ? {} : { zone }),
    ...hintsOf(textAt(service, 'spec', 'trafficDistribution'), nodeName, zone),
  }
}

/** trafficDistribution becomes a hint on each endpoint: its own zone, or its own node as well. */
function hintsOf(distribution: string, nodeName: string, zone: string | undefined): JsonObject {
  if (distribution === '' || nodeName === '') return {}
  const forZones = zone === undefined ? {} : { forZones: [{ name: zone }] }
  if (distribution === 'PreferSameNode') {
    return { hints: { ...forZones, forNodes: [{ name: nodeName }] } }
  }
  return zone === undefined ? {} : { hints: forZones }
}

/** The ports of a slice; a named targetPort is looked up in the pod (S26). */
export function portsOf(service: KubeObject, pod: KubeObject | undefined): readonly Json[] {
  return listAt(service, 'spec', 'ports').flatMap((port) => {
    const number = targetOf(port, pod)
    if (number === undefined) return []
    return [
      {
        name: textAt(port, 'name'),
        port: number,
        protocol: textAt(port, 'protocol') || 'TCP',
        ...(textAt(port, 'appProtocol') === '' ? {} : { appProtocol: textAt(port, 'appProtocol') }),
      },
    ]
  })
}

function targetOf(port: Json, pod: KubeObject | undefined): number | undefined {
  const target = at(port, 'targetPort')
  if (typeof target === 'number') return target
  if (typeof target !== 'string') return numberAt(port, 'port')
  const containers = listAt(pod, 'spec', 'containers')
  const named = containers
    .flatMap((container) => listAt(container, 'ports'))
    .find(
      (each) =>
        textAt(each, 'name') === target &&
        (textAt(each, 'protocol') || 'TCP') === (textAt(port, 'protocol') || 'TCP'),
    )
  return numberAt(named, 'containerPort')
}

interface PortGroup {
  readonly ports: readonly Json[]
  readonly members: { readonly pod: KubeObject; readonly ip: string }[]
}

/** Pods that have an address of the family, those with the same port numbers together. */
export function byPorts(
  service: KubeObject,
  pods: readonly KubeObject[],
  family: Json | undefined,
): readonly PortGroup[] {
  const groups = new Map<string, PortGroup>()
  for (const pod of pods) {
    const ip = listAt(pod, 'status', 'podIPs')
      .map((entry) => textAt(entry, 'ip'))
      .concat(textAt(pod, 'status', 'podIP'))
      .find((text) => familyOf(text) === family)
    if (ip === undefined) continue
    const ports = portsOf(service, pod)
    const id = JSON.stringify(ports)
    const group = groups.get(id) ?? { ports, members: [] }
    group.members.push({ pod, ip })
    groups.set(id, group)
  }
  return [...groups.values()]
}

/** A slice to create; it is removed with its owner. */
export function newSlice(owner: KubeObject, metadata: JsonObject, content: JsonObject): JsonObject {
  const { name, namespace } = owner.metadata
  const generated = {
    generateName: `${name}-`,
    namespace,
    ownerReferences: [ownerReference(owner)],
  }
  return {
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    metadata: { ...generated, ...metadata },
    ...content,
  }
}

/** The keys of the Services that a pod belongs to, or belonged to before the change. */
export function selecting(
  services: KindClient,
  { object, previous }: StoreEvent,
): readonly string[] {
  return services
    .list()
    .filter((service) => selects(service, object) || (previous && selects(service, previous)))
    .map(keyOf)
}

/** A Service without a selector selects no pod. */
export function selects(service: KubeObject, pod: KubeObject): boolean {
  if (service.metadata.namespace !== pod.metadata.namespace) return false
  return hasSelector(service) && matchesLabels(pod, textMapAt(service, 'spec', 'selector'))
}

export function hasSelector(service: KubeObject): boolean {
  return Object.keys(textMapAt(service, 'spec', 'selector')).length > 0
}
