import { equalJson, isList, isObject, type Json, type JsonObject } from '../json.js'
import { badRequest } from '../status.js'
import { isPrimitiveSet, mergeKeyOf } from './list-keys.js'

/** Applies RFC 7386: null removes, objects merge, everything else replaces. */
export function applyMergePatch(document: Json | undefined, patch: Json): Json {
  if (!isObject(patch)) return patch
  const result = new Map(Object.entries(isObject(document) ? document : {}))
  for (const [key, value] of Object.entries(patch)) {
    if (value === undefined) continue
    if (value === null) result.delete(key)
    else result.set(key, applyMergePatch(result.get(key), value))
  }
  return Object.fromEntries(result)
}

const orderPrefix = '$setElementOrder/'
const deletePrefix = '$deleteFromPrimitiveList/'

/**
 * Applies a merge patch to lists, too. Items of lists that are maps are matched by key. The
 * directives `$patch`, `$retainKeys`, `$setElementOrder/x` and `$deleteFromPrimitiveList/x` have
 * effect.
 */
export function applyStrategicMergePatch(document: Json, patch: Json): Json {
  if (!isObject(patch)) throw badRequest('a strategic merge patch is an object')
  return mergeObject(isObject(document) ? document : {}, patch, [])
}

function mergeObject(document: JsonObject, patch: JsonObject, path: readonly string[]): Json {
  const directive = patch['$patch']
  if (directive === 'replace') return withoutDirectives(patch)
  if (directive === 'delete') return {}
  const result = new Map(Object.entries(document))
  for (const [key, value] of Object.entries(patch)) {
    if (value === undefined || key.startsWith('$')) continue
    if (value === null) result.delete(key)
    else result.set(key, mergeValue(result.get(key), value, [...path, key]))
  }
  for (const [key, value] of Object.entries(patch)) applyDirective(result, key, value, path)
  return Object.fromEntries(result)
}

function mergeValue(present: Json | undefined, value: Json, path: readonly string[]): Json {
  if (isObject(value)) return mergeObject(isObject(present) ? present : {}, value, path)
  if (!isList(value)) return value
  const list = isList(present) ? present : []
  const key = mergeKeyOf(path)
  if (key !== undefined && value.every(isObject)) return mergeList(list, value, { key, path })
  if (!isPrimitiveSet({ names: path, isCustom: false })) return value
  return [...list, ...value.filter((item) => !list.includes(item))]
}

function mergeList(
  list: readonly Json[],
  patches: readonly JsonObject[],
  options: { readonly key: string; readonly path: readonly string[] },
): Json {
  const { key, path } = options
  if (patches.some((patch) => patch['$patch'] === 'replace')) {
    return patches.filter((patch) => patch['$patch'] !== 'replace').map(withoutDirectives)
  }
  const idOf = (item: Json | undefined) => (isObject(item) ? item[key] : undefined)
  let result = [...list]
  for (const patch of patches) {
    const id = idOf(patch)
    if (id === undefined) throw badRequest(`an item of ${path.join('.')} has no merge key ${key}`)
    const index = result.findIndex((item) => equalJson(idOf(item), id))
    if (patch['$patch'] === 'delete') {
      result = result.filter((_, each) => each !== index)
      continue
    }
    const present = result[index]
    const merged = mergeObject(isObject(present) ? present : {}, patch, path)
    if (index < 0) result.push(merged)
    else result[index] = merged
  }
  return ordered(result, { order: patches, server: list, idOf })
}

function applyDirective(
  result: Map<string, Json | undefined>,
  name: string,
  value: Json | undefined,
  path: readonly string[],
): void {
  if (!isList(value)) return
  if (name === '$retainKeys') {
    for (const key of [...result.keys()]) if (!value.includes(key)) result.delete(key)
  } else if (name.startsWith(deletePrefix)) {
    const list = result.get(name.slice(deletePrefix.length))
    if (!isList(list)) return
    result.set(
      name.slice(deletePrefix.length),
      list.filter((item) => !value.includes(item)),
    )
  } else if (name.startsWith(orderPrefix)) {
    const field = name.slice(orderPrefix.length)
    const list = result.get(field)
    const key = mergeKeyOf([...path, field])
    const idOf = (item: Json | undefined) =>
      key !== undefined && isObject(item) ? item[key] : item
    if (isList(list)) result.set(field, ordered(list, { order: value, server: list, idOf }))
  }
}

interface Order {
  /** The items that the patch names, in its order. */
  readonly order: readonly Json[]
  /** The items that the list had before the patch. */
  readonly server: readonly Json[]
  readonly idOf: (item: Json | undefined) => Json | undefined
}

/**
 * Items that the patch names keep the order of the patch, and the others keep theirs. One of the
 * others stays in front of a named item only if it was in front before.
 */
function ordered(list: readonly Json[], { order, server, idOf }: Order): readonly Json[] {
  const indexIn = (items: readonly Json[], item: Json) =>
    items.findIndex((each) => equalJson(idOf(each), idOf(item)))
  const named = list
    .filter((item) => indexIn(order, item) >= 0)
    .toSorted((left, right) => indexIn(order, left) - indexIn(order, right))
  const others = list.filter((item) => indexIn(order, item) < 0)
  const result: Json[] = []
  for (const item of named) {
    const place = indexIn(server, item)
    while (others[0] !== undefined && place >= 0 && indexIn(server, others[0]) < place) {
      result.push(others[0])
      others.shift()
    }
    result.push(item)
  }
  return [...result, ...others]
}

function withoutDirectives(patch: JsonObject): JsonObject {
  return Object.fromEntries(Object.entries(patch).filter(([key]) => !key.startsWith('$')))
}
