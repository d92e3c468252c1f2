import {
  equalJson,
  isObject,
  listAt,
  numberAt,
  objectAt,
  textAt,
  textMapAt,
  type Json,
  type JsonObject,
} from './json.js'
import { parseIp } from '../../state/ip.js'
import type { KubeObject, NewObject } from './object.js'
import type { Strategy } from './registry.js'
import { collectionOf } from './resources.js'
import { matchesSelector } from './selectors.js'
import {
  ApiError,
  causesOf,
  invalidValue,
  notSupported,
  refuse,
  required,
  type Cause,
} from './status.js'

/** The defaults and rules of pods, Deployments, ReplicaSets, slices, Secrets and Namespaces that matter here. */

export const podStrategy: Strategy = {
  prepare(object, _previous, kind) {
    const spec = podSpec(objectAt(object, 'spec'))
    refuse(kind, object, validateContainers(spec, 'spec'))
    const status = { phase: 'Pending', ...objectAt(object, 'status') }
    return { ...object, spec, status }
  },
}

export const deploymentStrategy = replicated((spec) => ({
  strategy: { type: 'RollingUpdate', ...objectAt(spec, 'strategy') },
}))

export const replicaSetStrategy = replicated(() => ({}))

/** What has a number of pods, made from a template. */
function replicated(defaultsOf: (spec: JsonObject) => JsonObject): Strategy {
  return {
    prepare(object, previous, kind) {
      const given = objectAt(object, 'spec')
      const template = objectAt(given, 'template')
      const spec: JsonObject = {
        ...given,
        replicas: numberAt(given, 'replicas') ?? 1,
        ...defaultsOf(given),
        template: { ...template, spec: podSpec(objectAt(template, 'spec')) },
      }
      const replicas = numberAt(spec, 'replicas') ?? 0
      const isCount = Number.isInteger(replicas) && replicas >= 0
      refuse(kind, object, [
        ...validateContainers(objectAt(spec, 'template', 'spec'), 'spec.template.spec'),
        ...causesOf(
          !isCount && invalidValue('spec.replicas', replicas, 'must be greater than or equal to 0'),
        ),
        ...validateSelector(spec, previous),
      ])
      return { ...object, spec, status: objectAt(object, 'status') }
    },
  }
}

export const endpointSliceStrategy: Strategy = {
  prepare(object, previous, kind) {
    const type = textAt(object, 'addressType')
    const types = ['FQDN', 'IPv4', 'IPv6']
    const isOther = previous !== undefined && previous['addressType'] !== type
    const endpoints = listAt(object, 'endpoints')
    refuse(kind, object, [
      ...causesOf(
        type === '' && required('addressType'),
        type !== '' && !types.includes(type) && notSupported('addressType', type, types),
        isOther && invalidValue('addressType', type, 'field is immutable'),
      ),
      ...endpoints.flatMap((each, index) => addresses(each, index, type)),
    ])
    const ports = listAt(object, 'ports').map((port) =>
      isObject(port) ? { name: '', protocol: 'TCP', ...port } : port,
    )
    return { ...object, endpoints, ports }
  },
}

function base64Of(text: string): string {
  const bytes = new TextEncoder().encode(text)
  return btoa(Array.from(bytes, (byte) => String.fromCodePoint(byte)).join(''))
}

export const secretStrategy: Strategy = {
  prepare(object) {
    const { stringData: _written, ...rest } = object
    const encoded = Object.entries(textMapAt(object, 'stringData')).map(
      ([key, text]) => [key, base64Of(text)] as const,
    )
    const { apiVersion, kind, metadata } = object
    const data = { ...objectAt(object, 'data'), ...Object.fromEntries(encoded) }
    return { ...rest, apiVersion, kind, metadata, type: textAt(object, 'type') || 'Opaque', data }
  },
}

function podSpec(spec: JsonObject): JsonObject {
  return {
    restartPolicy: 'Always',
    terminationGracePeriodSeconds: 30,
    dnsPolicy: 'ClusterFirst',
    ...spec,
    containers: listAt(spec, 'containers').map(container),
  }
}

function container(value: Json): Json {
  if (!isObject(value)) return value
  const ports = listAt(value, 'ports').map((port) =>
    isObject(port) ? { protocol: 'TCP', ...port } : port,
  )
  return { ...value, ...(ports.length === 0 ? {} : { ports }) }
}

function validateContainers(spec: JsonObject, field: string): readonly Cause[] {
  const containers = listAt(spec, 'containers')
  if (containers.length === 0) return [required(`${field}.containers`)]
  return containers.flatMap((each, index) => {
    const missing = ['name', 'image'].filter((key) => textAt(each, key) === '')
    return missing.map((key) => required(`${field}.containers[${index}].${key}`))
  })
}

function validateSelector(spec: JsonObject, previous: KubeObject | undefined): readonly Cause[] {
  const selector = objectAt(spec, 'selector')
  if (Object.keys(selector).length === 0) return [required('spec.selector')]
  const before = previous && objectAt(previous, 'spec', 'selector')
  if (before && !equalJson(before, selector)) {
    return [invalidValue('spec.selector', selector, 'field is immutable')]
  }
  const labels = objectAt(spec, 'template', 'metadata', 'labels')
  const probe = { apiVersion: 'v1', kind: 'Pod', metadata: { name: '', labels } }
  if (matchesSelector(probe as KubeObject, selector)) return []
  const why = '`selector` does not match template `labels`'
  return [invalidValue('spec.template.metadata.labels', labels, why)]
}

function addresses(endpoint: Json, index: number, type: string): readonly Cause[] {
  const field = `endpoints[${index}].addresses`
  const list = listAt(endpoint, 'addresses')
  if (list.length === 0) return [required(field, 'must contain at least 1 address')]
  if (type === 'FQDN') return []
  return list.flatMap((address, place) =>
    typeof address === 'string' && parseIp(address)?.family === type
      ? []
      : [invalidValue(`${field}[${place}]`, address, `must be a valid ${type} address`)],
  )
}

/** The namespaces of a new cluster. */
export const firstNamespaces = ['default', 'kube-node-lease', 'kube-public', 'kube-system']

function mayNotGo(name: string): ApiError {
  const message = `namespaces "${name}" is forbidden: this namespace may not be deleted`
  return new ApiError(403, 'Forbidden', message, { name, kind: 'namespaces' })
}

/** A namespace is removed with everything in it. */
export const namespaceStrategy: Strategy = {
  prepare(object) {
    const { metadata } = object
    const labels = { ...metadata.labels, 'kubernetes.io/metadata.name': metadata.name }
    return {
      ...object,
      metadata: { ...metadata, labels },
      spec: { finalizers: ['kubernetes'], ...objectAt(object, 'spec') },
      status: { phase: 'Active', ...objectAt(object, 'status') },
    }
  },
  beforeRemoval({ metadata: { name } }, { store, resources }) {
    if (firstNamespaces.includes(name) && name !== 'kube-node-lease') throw mayNotGo(name)
    for (const collection of new Set(
      resources.all.filter((kind) => kind.namespaced).map(collectionOf),
    )) {
      for (const object of store.list(collection)) {
        if (object.metadata.namespace === name) store.remove(collection, object)
      }
    }
  },
}

export function namespaceObject(name: string): NewObject {
  return { apiVersion: 'v1', kind: 'Namespace', metadata: { name } }
}
