import { equalJson, isList, isObject, withAt, type Json, type JsonObject } from '../json.js'
import { counted } from '../../../state/names.js'
import type { KubeObject } from '../object.js'
import { ApiError } from '../status.js'
import { fieldsOf, itemStep, printPath, stepsOf, valueStep } from './field-paths.js'
import { isAtomicMap, isPrimitiveSet, listMapKeysOf, rootOf, type Place } from './list-keys.js'
import { isOwned, managersOf, without, withManagers, type FieldManager } from './managed-fields.js'

interface Applier {
  readonly name: string
  readonly time: string
  /** Takes over fields that others own instead of failing. */
  readonly force: boolean
}

/**
 * Merges what the author applied into the stored object. The author owns the fields that they give.
 * Fields that they gave last time and not now are removed, unless another manager owns them, too.
 * All others stay.
 */
export function applyServerSide(
  current: KubeObject | undefined,
  applied: KubeObject,
  applier: Applier,
): KubeObject {
  const given = fieldsOf(applied)
  const managers = current === undefined ? [] : managersOrFirst(current)
  const isOwn = (manager: FieldManager) =>
    manager.name === applier.name && manager.operation === 'Apply'
  const own = managers.find(isOwn)
  const others = managers.filter((manager) => !isOwn(manager))
  const contested = conflicts(current, given, others)
  if (contested.length > 0 && !applier.force) throw conflictError(contested)

  const lost = new Set(contested.map(({ path }) => path))
  const left = others.map((manager) => ({ ...manager, fields: without(manager.fields, lost) }))
  const fields = new Set(given.keys())
  const isUnchanged =
    own !== undefined &&
    own.fields.size === fields.size &&
    [...fields].every((path) => own.fields.has(path))
  const entry: FieldManager = {
    name: applier.name,
    operation: 'Apply',
    apiVersion: applied.apiVersion,
    time: isUnchanged ? own.time : applier.time,
    fields,
  }
  const root = rootOf(applied.apiVersion)
  const merged = mergeObject(current ?? {}, applied, root)
  const dropped = [...(own?.fields ?? [])].filter(
    (path) => !fields.has(path) && !isOwned(path, [...left, entry]),
  )
  const result = dropped.reduce((object, path) => drop(object, stepsOf(path), root), merged)
  return withManagers(result as KubeObject, [...left, entry])
}

/** The managers of an object. Without any, one manager from before the first apply owns it all. */
function managersOrFirst(current: KubeObject): readonly FieldManager[] {
  const managers = managersOf(current)
  if (managers.length > 0) return managers
  const { apiVersion } = current
  const time = current.metadata.creationTimestamp ?? ''
  const fields = new Set(fieldsOf(current).keys())
  return [{ name: 'before-first-apply', operation: 'Update', apiVersion, time, fields }]
}

interface Conflict {
  readonly path: string
  readonly manager: FieldManager
}

function conflicts(
  current: KubeObject | undefined,
  given: ReadonlyMap<string, Json>,
  others: readonly FieldManager[],
): readonly Conflict[] {
  if (current === undefined) return []
  const present = fieldsOf(current)
  return [...given].flatMap(([path, value]) => {
    if (equalJson(present.get(path), value)) return []
    const manager = others.find(({ fields }) => fields.has(path))
    return manager === undefined ? [] : [{ path, manager }]
  })
}

function conflictError(found: readonly Conflict[]): ApiError {
  const causes = found.map(({ path, manager }) => ({
    reason: 'FieldManagerConflict',
    message: `conflict with "${manager.name}" using ${manager.apiVersion}`,
    field: printPath(path),
  }))
  const list = causes.map(({ message, field }) => `${message}: ${field}`).join(', ')
  const count = counted(causes.length, 'conflict')
  return new ApiError(409, 'Conflict', `Apply failed with ${count}: ${list}`, { causes })
}

function within(place: Place, name: string): Place {
  return { ...place, names: [...place.names, name] }
}

function mergeObject(present: JsonObject, applied: JsonObject, place: Place): JsonObject {
  const result = new Map(Object.entries(present))
  for (const [name, value] of Object.entries(applied)) {
    if (value === undefined) continue
    if (value === null) result.delete(name)
    else result.set(name, mergeValue(result.get(name), value, within(place, name)))
  }
  return Object.fromEntries(result)
}

function mergeValue(present: Json | undefined, applied: Json, place: Place): Json {
  if (isAtomicMap(place)) return applied
  if (isObject(applied)) return mergeObject(isObject(present) ? present : {}, applied, place)
  if (!isList(applied)) return applied
  const list = isList(present) ? present : []
  const keys = listMapKeysOf(place)
  if (keys !== undefined && applied.every(isObject)) {
    const old = new Map(list.filter(isObject).map((item) => [itemStep(item, keys), item]))
    const items = applied.map((item) => {
      const step = itemStep(item, keys)
      const merged = mergeObject(old.get(step) ?? {}, item, place)
      old.delete(step)
      return merged
    })
    return [...items, ...old.values()]
  }
  if (!isPrimitiveSet(place)) return applied
  return [...list, ...applied.filter((item) => !list.includes(item))]
}

/** The object without the field at the path. */
function drop(object: JsonObject, steps: readonly string[], place: Place): JsonObject {
  const [step, ...rest] = steps
  if (step?.startsWith('f:') !== true) return object
  const name = step.slice(2)
  const value = object[name]
  if (value === undefined) return object
  const next = rest.length === 0 ? undefined : dropIn(value, rest, within(place, name))
  return withAt(object, [name], next)
}

function dropIn(value: Json, steps: readonly string[], place: Place): Json | undefined {
  if (isObject(value)) {
    const left = drop(value, steps, place)
    // An object that is empty after that is dropped, too.
    return Object.keys(left).length === 0 ? undefined : left
  }
  if (!isList(value)) return value
  const [step = '', ...rest] = steps
  const keys = listMapKeysOf(place) ?? []
  const isMeant = (item: Json) =>
    step.startsWith('v:')
      ? valueStep(item) === step
      : isObject(item) && itemStep(item, keys) === step
  if (rest.length === 0) return value.filter((item) => !isMeant(item))
  return value.map((item) => (isMeant(item) && isObject(item) ? drop(item, rest, place) : item))
}
