import { sha256 } from '../../../state/sha256.js'
import {
  equalJson,
  isList,
  isObject,
  objectAt,
  withAt,
  type Json,
  type JsonObject,
} from '../json.js'
import type { KubeObject } from '../object.js'

export const hashLabel = 'pod-template-hash'

export function templateIn(deployment: KubeObject): JsonObject {
  return objectAt(deployment, 'spec', 'template')
}

/** The template of a set as its Deployment had it. */
export function templateOf(set: KubeObject): JsonObject {
  return withAt(objectAt(set, 'spec', 'template'), ['metadata', 'labels', hashLabel], undefined)
}

/** `kubectl rollout undo` writes fields that are empty; they do not make another version. */
export function isSameTemplate(left: JsonObject, right: JsonObject): boolean {
  return equalJson(withoutEmpty(left) ?? null, withoutEmpty(right) ?? null)
}

/** Ten hexadecimal digits, as in the names of pods. */
export function hashOf(template: JsonObject): string {
  const text = JSON.stringify(withoutEmpty(template) ?? {})
  const bytes = Array.from(sha256(text).subarray(0, 5))
  return bytes.map((byte) => byte.toString(16).padStart(2, '0')).join('')
}

/** Kubernetes compares objects so: null, an empty list and an empty object count as absent. */
function withoutEmpty(value: Json | undefined): Json | undefined {
  if (isList(value)) {
    return value.length === 0 ? undefined : value.map((each) => withoutEmpty(each) ?? null)
  }
  if (!isObject(value)) return value ?? undefined
  const entries = Object.entries(value)
    .map(([key, each]) => [key, withoutEmpty(each)] as const)
    .filter(([, each]) => each !== undefined)
  return entries.length === 0 ? undefined : Object.fromEntries(entries)
}
