/**
 * JSON values and functions to read them. Clients send API objects of any shape, so no shape is
 * assumed.
 */

export type Json = null | boolean | number | string | readonly Json[] | JsonObject

export interface JsonObject {
  readonly [key: string]: Json | undefined
}

/** The one empty object, so that reading an absent part allocates nothing. */
const emptyObject: JsonObject = Object.freeze({})

export function isObject(value: Json | undefined): value is JsonObject {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

export function isList(value: Json | undefined): value is readonly Json[] {
  return Array.isArray(value)
}

/** The value at a path of keys; `undefined` if a step is absent or is not in an object. */
export function at(value: Json | undefined, ...path: readonly string[]): Json | undefined {
  let current = value
  for (const key of path) {
    // hasOwn: a key such as `constructor` must not find what every object inherits.
    if (!isObject(current) || !Object.hasOwn(current, key)) return undefined
    current = current[key]
  }
  return current
}

export function objectAt(value: Json | undefined, ...path: readonly string[]): JsonObject {
  const found = at(value, ...path)
  return isObject(found) ? found : emptyObject
}

export function listAt(value: Json | undefined, ...path: readonly string[]): readonly Json[] {
  const found = at(value, ...path)
  return isList(found) ? found : []
}

export function textAt(value: Json | undefined, ...path: readonly string[]): string {
  const found = at(value, ...path)
  return typeof found === 'string' ? found : ''
}

export function numberAt(value: Json | undefined, ...path: readonly string[]): number | undefined {
  const found = at(value, ...path)
  return typeof found === 'number' ? found : undefined
}

export function textsAt(value: Json | undefined, ...path: readonly string[]): readonly string[] {
  return listAt(value, ...path).filter((entry) => typeof entry === 'string')
}

/** The string entries of a map such as labels. */
export function textMapAt(
  value: Json | undefined,
  ...path: readonly string[]
): Readonly<Record<string, string>> {
  const entries: [string, string][] = []
  for (const [key, entry] of Object.entries(objectAt(value, ...path))) {
    if (typeof entry === 'string') entries.push([key, entry])
  }
  return Object.fromEntries(entries)
}

/** A copy with the value at the path replaced, or removed when `undefined`. */
export function withAt<T extends JsonObject>(
  object: T,
  path: readonly string[],
  value: Json | undefined,
): T
export function withAt(
  object: JsonObject,
  path: readonly string[],
  value: Json | undefined,
): JsonObject {
  const [key, ...rest] = path
  if (key === undefined) return isObject(value) ? value : object
  const next = rest.length === 0 ? value : withAt(objectAt(object, key), rest, value)
  const entries = Object.entries(object).filter(([name]) => name !== key)
  if (next !== undefined) entries.push([key, next])
  // fromEntries defines properties, so a key `__proto__` stays an ordinary key.
  return Object.fromEntries(entries)
}

export function equalJson(left: Json | undefined, right: Json | undefined): boolean {
  if (left === right) return true
  if (isList(left) && isList(right)) {
    return (
      left.length === right.length && left.every((item, index) => equalJson(item, right[index]))
    )
  }
  if (!isObject(left) || !isObject(right)) return false
  const keys = definedKeys(left)
  return (
    keys.length === definedKeys(right).length &&
    keys.every((key) => Object.hasOwn(right, key) && equalJson(left[key], right[key]))
  )
}

function definedKeys(object: JsonObject): readonly string[] {
  return Object.keys(object).filter((key) => object[key] !== undefined)
}
