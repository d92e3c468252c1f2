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
import { ApiError, invalid, invalidValue, notSupported, required, type Cause } from './status.js'

/** The defaults and rules of pods, Deployments, ReplicaSets, slices, Secrets and Namespaces that matter here. */

const deploymentSubject = { group: 'apps', plural: 'deployments', kind: 'Deployment' }
const replicaSetSubject = { group: 'apps', plural: 'replicasets', kind: 'ReplicaSet' }
const podSubject = { group: '', plural: 'pods', kind: 'Pod' }
const sliceSubject = { group: 'discovery.k8s.io', plural: 'endpointslices', kind: 'EndpointSlice' }

export const podStrategy: Strategy = {
  prepare(object) {
    const spec = podSpec(objectAt(object, 'spec'))
    refuse(podSubject, object, validateContainers(spec, 'spec'))
    const status = { phase: 'Pending', ...objectAt(object, 'status') }
    return { ...object, spec, status }
  },
}

export const deploymentStrategy = replicated(deploymentSubject, (spec) => ({
  strategy: { type: 'RollingUpdate', ...objectAt(spec, 'strategy') },
}))

export const replicaSetStrategy = replicated(replicaSetSubject, () => ({}))

/** What has a number of pods, made from a template. */
function replicated(
  subject: typeof podSubject,
  defaultsOf: (spec: JsonObject) => JsonObject,
): Strategy {
  return {
    prepare(object, previous) {
      const given = objectAt(object, 'spec')
      const template = objectAt(given, 'template')
      const spec: JsonObject = {
        ...given,
        replicas: numberAt(given, 'replicas') ?? 1,
        ...defaultsOf(given),
        template: { ...template, spec: podSpec(objectAt(template, 'spec')) },
      }
      const inTemplate = objectAt(spec, 'template', 'spec')
      const causes = [...validateContainers(inTemplate, 'spec.template.spec')]
      const replicas = numberAt(spec, 'replicas') ?? 0
      if (!Number.isInteger(replicas) || replicas < 0) {
        causes.push(invalidValue('spec.replicas', replicas, 'must be greater than or equal to 0'))
      }
      causes.push(...validateSelector(spec, previous))
      refuse(subject, object, causes)
      return { ...object, spec, status: objectAt(object, 'status') }
    },
  }
}

export const endpointSliceStrategy: Strategy = {
  prepare(object, previous) {
    const type = textAt(object, 'addressType')
    const causes: Cause[] = []
    const types = ['FQDN', 'IPv4', 'IPv6']
    if (type === '') causes.push(required('addressType'))
    else if (!types.includes(type)) causes.push(notSupported('addressType', type, types))
    if (previous && previous['addressType'] !== type) {
      causes.push(invalidValue('addressType', type, 'field is immutable'))
    }
    causes.push(
      ...listAt(object, 'endpoints').flatMap((each, index) => addresses(each, index, type)),
    )
    refuse(sliceSubject, object, causes)
    const ports = listAt(object, 'ports').map((port) =>
      isObject(port) ? { name: '', protocol: 'TCP', ...port } : port,
    )
    return { ...object, endpoints: listAt(object, 'endpoints'), ports }
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

function refuse(subject: typeof podSubject, object: KubeObject, causes: readonly Cause[]): void {
  if (causes.length > 0) throw invalid(subject, object.metadata.name, causes)
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
    const causes: Cause[] = []
    if (textAt(each, 'name') === '') causes.push(required(`${field}.containers[${index}].name`))
    if (textAt(each, 'image') === '') causes.push(required(`${field}.containers[${index}].image`))
    return causes
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
