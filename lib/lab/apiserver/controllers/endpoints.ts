import { at, listAt, numberAt, textAt, textMapAt, type Json, type JsonObject } from '../json.js'
import type { KubeObject } from '../object.js'
import type { Registry } from '../registry.js'
import { collectionOf, type ResourceKind } from '../resources.js'
import { matchesLabels } from '../selectors.js'
import type { StoreEvent } from '../store.js'
import { keyOf } from './controller.js'
import { isPodReady } from './deployments.js'

export interface EndpointContext {
  readonly service: KubeObject
  readonly zoneOf: (node: string) => string | undefined
}

/** A pod as one endpoint of a Service. */
export function endpointOf(pod: KubeObject, ip: string, context: EndpointContext): JsonObject {
  const { service, zoneOf } = context
  const terminating = pod.metadata.deletionTimestamp !== undefined
  const serving = isPodReady(pod)
  // S29: publishing unready pods is done here, by calling them ready.
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

/** The Services that a pod belongs to, or belonged to before the change. */
export function selecting(
  { store }: Registry,
  services: ResourceKind,
  { object, previous }: StoreEvent,
): readonly string[] {
  return store
    .list(collectionOf(services))
    .filter((service) => selects(service, object) || (previous && selects(service, previous)))
    .map(keyOf)
}

/** A Service without a selector selects nobody. */
export function selects(service: KubeObject, pod: KubeObject): boolean {
  if (service.metadata.namespace !== pod.metadata.namespace) return false
  const selector = textMapAt(service, 'spec', 'selector')
  return Object.keys(selector).length > 0 && matchesLabels(pod, selector)
}
