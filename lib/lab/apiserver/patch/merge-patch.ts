import { isObject, type Json } from '../json.js'

/** RFC 7386: null removes, objects merge, everything else replaces. */
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
