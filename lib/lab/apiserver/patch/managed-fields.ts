import { equalJson, isObject, listAt, textAt, type Json, type JsonObject } from '../json.js'
import type { KubeObject } from '../object.js'
import { fieldsOf, fromFieldsV1, isWithin, toFieldsV1, type FieldPaths } from './field-paths.js'

/** An owner of fields of an object. `operation` is the kind of request that made it the owner. */
export interface FieldManager {
  readonly name: string
  readonly operation: 'Apply' | 'Update'
  readonly apiVersion: string
  readonly time: string
  readonly fields: FieldPaths
}

export function managersOf(object: JsonObject): readonly FieldManager[] {
  return listAt(object, 'metadata', 'managedFields')
    .filter(isObject)
    .map((entry) => ({
      name: textAt(entry, 'manager'),
      operation: textAt(entry, 'operation') === 'Apply' ? 'Apply' : 'Update',
      apiVersion: textAt(entry, 'apiVersion'),
      time: textAt(entry, 'time'),
      fields: fromFieldsV1(entry['fieldsV1']),
    }))
}

export function withManagers(object: KubeObject, managers: readonly FieldManager[]): KubeObject {
  const managedFields = managers
    .filter((manager) => manager.fields.size > 0)
    .map((manager): Json => ({
      manager: manager.name,
      operation: manager.operation,
      apiVersion: manager.apiVersion,
      time: manager.time,
      fieldsType: 'FieldsV1',
      fieldsV1: toFieldsV1(manager.fields),
    }))
  return { ...object, metadata: { ...object.metadata, managedFields } }
}

/**
 * Makes the author the only owner of the fields that an ordinary write changed. If the author sends
 * managedFields, these are used.
 */
export function afterUpdate(
  object: KubeObject,
  previous: KubeObject | undefined,
  author: { readonly name: string; readonly time: string },
): KubeObject {
  const sent = object.metadata['managedFields']
  const kept = previous?.metadata['managedFields']
  if (sent !== undefined && !equalJson(sent, kept)) return object
  const before = previous === undefined ? new Map<string, Json>() : fieldsOf(previous)
  const after = fieldsOf(object)
  const changed = [...after].filter(
    ([path, value]) => !before.has(path) || !equalJson(before.get(path), value),
  )
  const gone = [...before.keys()].filter((path) => !after.has(path))
  const managers = managersOf(previous ?? {})
  if (changed.length === 0 && gone.length === 0) return withManagers(object, managers)
  const lost = new Set([...changed.map(([path]) => path), ...gone])
  const isOwn = ({ name, operation }: FieldManager) =>
    name === author.name && operation === 'Update'
  const own = managers.find(isOwn)
  const touched = [...(own?.fields ?? []), ...changed.map(([path]) => path)]
  const fields = new Set(touched.filter((path) => after.has(path)))
  const others = managers
    .filter((manager) => !isOwn(manager))
    .map((manager) => ({ ...manager, fields: without(manager.fields, lost) }))
  const { apiVersion } = object
  const entry = { ...author, operation: 'Update' as const, apiVersion, fields }
  return withManagers(object, [...others, entry])
}

export function without(fields: FieldPaths, lost: FieldPaths): FieldPaths {
  return new Set([...fields].filter((path) => !lost.has(path)))
}

/** Whether a manager owns the path or something below it. */
export function isOwned(path: string, managers: readonly FieldManager[]): boolean {
  return managers.some(({ fields }) =>
    [...fields].some((each) => each === path || isWithin(each, path)),
  )
}
