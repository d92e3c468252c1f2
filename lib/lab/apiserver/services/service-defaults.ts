import {
  equalJson,
  isObject,
  listAt,
  numberAt,
  objectAt,
  textAt,
  textsAt,
  type Json,
  type JsonObject,
} from '../json.js'
import type { KubeObject } from '../object.js'

/** Sets the fields of a Service that its author left out, as the API server does. */
export function withServiceDefaults(service: KubeObject): KubeObject {
  const spec = objectAt(service, 'spec')
  const type = textAt(spec, 'type') || 'ClusterIP'
  const isExternalName = type === 'ExternalName'
  const affinity = textAt(spec, 'sessionAffinity') || 'None'
  const defaults: JsonObject = {
    ...(listAt(spec, 'ports').length === 0
      ? {}
      : { ports: listAt(spec, 'ports').map(portDefaults) }),
    type,
    sessionAffinity: affinity,
    sessionAffinityConfig: affinity === 'None' ? undefined : affinityDefaults(spec),
    ...(isExternalName
      ? {}
      : { internalTrafficPolicy: orElse(spec, 'internalTrafficPolicy', 'Cluster') }),
    ...(isExternallyAccessible(spec, type)
      ? { externalTrafficPolicy: orElse(spec, 'externalTrafficPolicy', 'Cluster') }
      : {}),
    ...(type === 'LoadBalancer'
      ? { allocateLoadBalancerNodePorts: spec['allocateLoadBalancerNodePorts'] ?? true }
      : {}),
  }
  return {
    ...service,
    spec: { ...withoutNulls(spec), ...defaults },
    status: { loadBalancer: {}, ...objectAt(service, 'status') },
  }
}

export function isExternallyAccessible(spec: JsonObject, type: string): boolean {
  return type === 'NodePort' || type === 'LoadBalancer' || textsAt(spec, 'externalIPs').length > 0
}

/** Whether the server allocates node ports. */
export function wantsNodePorts(spec: JsonObject): boolean {
  const type = textAt(spec, 'type')
  return (
    type === 'NodePort' ||
    (type === 'LoadBalancer' && spec['allocateLoadBalancerNodePorts'] !== false)
  )
}

export function wantsHealthCheckPort(spec: JsonObject): boolean {
  return (
    textAt(spec, 'type') === 'LoadBalancer' && textAt(spec, 'externalTrafficPolicy') === 'Local'
  )
}

export function isHeadless(spec: JsonObject): boolean {
  return textAt(spec, 'clusterIP') === 'None'
}

/**
 * Allocated values stay when an update leaves them out. They are removed when the new type does not
 * use them and the author did not change them.
 */
export function withAllocatedValues(service: KubeObject, previous: KubeObject): KubeObject {
  const spec = objectAt(service, 'spec')
  const before = objectAt(previous, 'spec')
  const isExternalName = textAt(spec, 'type') === 'ExternalName'
  const ports = listAt(spec, 'ports').map((port) => keepNodePort(port, spec, before))
  const kept = {
    ...spec,
    ...(ports.length === 0 ? {} : { ports }),
    ...clusterIps(spec, before, isExternalName),
    ...healthCheckPort(spec, before),
    ...(isExternallyAccessible(spec, textAt(spec, 'type')) ||
    spec['externalTrafficPolicy'] !== before['externalTrafficPolicy']
      ? {}
      : { externalTrafficPolicy: undefined }),
    ...(textAt(spec, 'type') === 'LoadBalancer' ||
    spec['allocateLoadBalancerNodePorts'] !== before['allocateLoadBalancerNodePorts']
      ? {}
      : { allocateLoadBalancerNodePorts: undefined }),
  }
  return { ...service, spec: withoutSecondFamily(kept, before) }
}

/** The policy alone makes a Service single-stack again; its first address and family stay. */
function withoutSecondFamily(spec: JsonObject, before: JsonObject): JsonObject {
  const wasDual = /DualStack$/.test(textAt(before, 'ipFamilyPolicy'))
  if (!wasDual || textAt(spec, 'ipFamilyPolicy') !== 'SingleStack') return spec
  const [clusterIPs, ipFamilies] = [listAt(spec, 'clusterIPs'), listAt(spec, 'ipFamilies')]
  return { ...spec, clusterIPs: clusterIPs.slice(0, 1), ipFamilies: ipFamilies.slice(0, 1) }
}

function clusterIps(spec: JsonObject, before: JsonObject, isExternalName: boolean): JsonObject {
  const now = textAt(spec, 'clusterIP')
  const was = textAt(before, 'clusterIP')
  if (isExternalName) {
    return now === was
      ? {
          clusterIP: undefined,
          clusterIPs: undefined,
          ipFamilies: undefined,
          ipFamilyPolicy: undefined,
          internalTrafficPolicy: undefined,
        }
      : {}
  }
  if (textAt(before, 'type') === 'ExternalName') return {}
  const list = listAt(spec, 'clusterIPs')
  const wasList = listAt(before, 'clusterIPs')
  const families =
    listAt(spec, 'ipFamilies').length === 0 ? { ipFamilies: before['ipFamilies'] } : {}
  const policy =
    textAt(spec, 'ipFamilyPolicy') === '' ? { ipFamilyPolicy: before['ipFamilyPolicy'] } : {}
  // Only one of the two fields was edited: the other one follows.
  const follows = now !== was && equalJson(list, wasList)
  if (now === '' && (list.length === 0 || follows)) {
    return { clusterIP: was, clusterIPs: wasList, ...families, ...policy }
  }
  if (list.length === 0 || follows) {
    return { clusterIPs: now === was ? wasList : [now], ...families, ...policy }
  }
  return { ...families, ...policy }
}

function healthCheckPort(spec: JsonObject, before: JsonObject): JsonObject {
  const now = numberAt(spec, 'healthCheckNodePort') ?? 0
  const was = numberAt(before, 'healthCheckNodePort') ?? 0
  if (wantsHealthCheckPort(spec)) return now === 0 && was !== 0 ? { healthCheckNodePort: was } : {}
  return now === was ? { healthCheckNodePort: undefined } : {}
}

/** Node ports stay with the names of ports; all else about a port may change. */
function keepNodePort(port: Json, spec: JsonObject, before: JsonObject): Json {
  if (!isObject(port)) return port
  const name = textAt(port, 'name')
  const same = listAt(before, 'ports').find((old) => textAt(old, 'name') === name)
  const was = numberAt(same, 'nodePort') ?? 0
  const now = numberAt(port, 'nodePort') ?? 0
  const type = textAt(spec, 'type')
  if (type === 'NodePort' || type === 'LoadBalancer') {
    if (now !== 0 || was === 0 || !wantsNodePorts(spec)) return port
    const isTaken = listAt(spec, 'ports').some((other) => numberAt(other, 'nodePort') === was)
    return isTaken ? port : { ...port, nodePort: was }
  }
  return now !== 0 && now === was ? { ...port, nodePort: undefined } : port
}

function portDefaults(port: Json): Json {
  if (!isObject(port)) return port
  const { targetPort } = port
  const isUnset =
    targetPort === undefined || targetPort === null || targetPort === 0 || targetPort === ''
  return {
    ...withoutNulls(port),
    protocol: textAt(port, 'protocol') || 'TCP',
    targetPort: isUnset ? port['port'] : targetPort,
  }
}

function affinityDefaults(spec: JsonObject): JsonObject {
  const seconds = numberAt(spec, 'sessionAffinityConfig', 'clientIP', 'timeoutSeconds')
  return { clientIP: { timeoutSeconds: seconds ?? 10_800 } }
}

function orElse(spec: JsonObject, field: string, fallback: string): Json {
  const value = spec[field]
  return value === undefined || value === null || value === '' ? fallback : value
}

function withoutNulls(object: JsonObject): JsonObject {
  return Object.fromEntries(Object.entries(object).filter(([, value]) => value !== null))
}
