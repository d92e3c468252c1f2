import { isObject, numberAt, textMapAt, withAt, type Json, type JsonObject } from './json.js'
import { parseObject, type KubeObject } from './object.js'
import { badRequest } from './status.js'

/** The `scale` subresource: the number of replicas of any kind that has one, in one shape. */
export function scaleOf(object: KubeObject): KubeObject {
  const {
    name,
    namespace = '',
    uid = '',
    resourceVersion = '',
    creationTimestamp = '',
  } = object.metadata
  const selector = textMapAt(object, 'spec', 'selector', 'matchLabels')
  return {
    kind: 'Scale',
    apiVersion: 'autoscaling/v1',
    metadata: { name, namespace, uid, resourceVersion, creationTimestamp },
    spec: { replicas: numberAt(object, 'spec', 'replicas') ?? 0 },
    status: {
      replicas: numberAt(object, 'status', 'replicas') ?? 0,
      selector: Object.entries(selector)
        .map(([key, value]) => `${key}=${value}`)
        .join(','),
    },
  }
}

/** The object with the replicas of a changed Scale. */
export function withScale(object: KubeObject, scale: Json): JsonObject {
  const { metadata } = parseObject(scale)
  const spec = isObject(scale) ? scale['spec'] : undefined
  const replicas = numberAt(spec, 'replicas') ?? 0
  if (!Number.isInteger(replicas) || replicas < 0) {
    throw badRequest('spec.replicas is not a whole number of 0 or more')
  }
  const scaled = withAt(object, ['spec', 'replicas'], replicas)
  const { resourceVersion } = metadata
  return { ...scaled, metadata: { ...object.metadata, resourceVersion } }
}
