import { isObject, listAt, objectAt, textAt, type Json, type JsonObject } from './json.js'
import { badRequest } from './status.js'

/** Any API object: what every kind has, and the rest as plain JSON. Never changed in place. */
export interface KubeObject extends JsonObject {
  readonly apiVersion: string
  readonly kind: string
  readonly metadata: ObjectMeta
}

export interface ObjectMeta extends JsonObject {
  readonly name: string
  readonly namespace?: string
  readonly generateName?: string
  readonly uid?: string
  readonly resourceVersion?: string
  readonly generation?: number
  readonly creationTimestamp?: string
  readonly deletionTimestamp?: string
  readonly deletionGracePeriodSeconds?: number
  readonly labels?: Readonly<Record<string, string>>
  readonly annotations?: Readonly<Record<string, string>>
  readonly ownerReferences?: readonly OwnerReference[]
}

export interface OwnerReference extends JsonObject {
  readonly apiVersion: string
  readonly kind: string
  readonly name: string
  readonly uid: string
}

/** What a caller of the in-process interface has to give; the server adds the rest. */
export interface NewObject extends JsonObject {
  readonly apiVersion: string
  readonly kind: string
  readonly metadata: JsonObject
}

/** A condition of the object's status, such as `Ready`. */
export function conditionOf(object: JsonObject, type: string): Json | undefined {
  return listAt(object, 'status', 'conditions').find((each) => textAt(each, 'type') === type)
}

/** Since when the condition has this status. One that has not changed keeps its time. */
export function sinceOf(object: JsonObject, type: string, status: string, now: string): string {
  const before = conditionOf(object, type)
  return textAt(before, 'status') === status ? textAt(before, 'lastTransitionTime') : now
}

export function isReady(object: JsonObject): boolean {
  return textAt(conditionOf(object, 'Ready'), 'status') === 'True'
}

const textFields = ['name', 'namespace', 'generateName', 'uid', 'resourceVersion'] as const
const textMaps = ['labels', 'annotations'] as const

/** Checks the parts that the server itself reads; throws the same 400 that a typed server gives. */
export function parseObject(value: Json | undefined): KubeObject {
  if (!isObject(value)) throw badRequest('the body is not a JSON object; send one API object')
  const { apiVersion, kind } = value
  if (typeof apiVersion !== 'string' || apiVersion === '') {
    throw badRequest('the object has no apiVersion; set it, such as "v1"')
  }
  if (typeof kind !== 'string' || kind === '') {
    throw badRequest('the object has no kind; set it, such as "Service"')
  }
  const metadata = value['metadata'] ?? {}
  if (!isObject(metadata)) throw badRequest('metadata is not an object')
  return { ...value, apiVersion, kind, metadata: parseMeta(metadata) }
}

function parseMeta(metadata: JsonObject): ObjectMeta {
  for (const field of textFields) {
    const value = metadata[field] ?? ''
    if (typeof value !== 'string') throw badRequest(`metadata.${field} is not a string`)
  }
  for (const field of textMaps) {
    const map = metadata[field] ?? {}
    if (!isObject(map)) throw badRequest(`metadata.${field} is not a map`)
    for (const [key, value] of Object.entries(map)) {
      if (typeof value !== 'string') {
        throw badRequest(
          `metadata.${field}[${JSON.stringify(key)}] is not a string; quote the value`,
        )
      }
    }
  }
  const owners = metadata['ownerReferences'] ?? []
  if (!Array.isArray(owners)) throw badRequest('metadata.ownerReferences is not a list')
  // JSON null means absent, and so does an empty map. Both are dropped here, so that elsewhere only
  // `undefined` means absent.
  const isEmptyMap = (field: string) =>
    textMaps.some((each) => each === field) && Object.keys(objectAt(metadata, field)).length === 0
  const present = Object.entries(metadata).filter(
    ([field, value]) => value !== null && !isEmptyMap(field),
  )
  return { name: '', ...Object.fromEntries(present) }
}
