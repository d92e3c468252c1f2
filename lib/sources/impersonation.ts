import { ConfigError } from '../errors.js'
import { asArray, asObject, asString, type Json } from '../state/json.js'

/** Headers with one value each, or with one line for each value. */
export type Headers = Readonly<Record<string, string | string[]>>

/**
 * The headers by which a user of a kubeconfig acts as another one, as client-go sends them. Throws
 * ConfigError: a client that cannot become the other user must not act as itself.
 */
export function impersonation(user: Json, where: string): Headers {
  const text = (value: unknown, field: string) => headerValue(value ?? '', `${where}: ${field}`)
  const texts = (value: unknown, field: string) => {
    const items = asArray(value ?? [])
    if (items === undefined) throw new ConfigError(`${where}: ${field} is not a list`)
    return items.map((item) => text(item, field))
  }
  const name = text(user['as'], 'as')
  const uid = text(user['as-uid'], 'as-uid')
  const groups = texts(user['as-groups'], 'as-groups')
  const extra = asObject(user['as-user-extra'] ?? {})
  if (extra === undefined) throw new ConfigError(`${where}: as-user-extra is not a map of lists`)
  const headers: Record<string, string | string[]> = {
    ...(name === '' ? {} : { 'Impersonate-User': name }),
    ...(uid === '' ? {} : { 'Impersonate-Uid': uid }),
    ...(groups.length === 0 ? {} : { 'Impersonate-Group': groups }),
  }
  for (const [key, values] of Object.entries(extra)) {
    const header = `Impersonate-Extra-${escaped(key.toLowerCase())}`
    const all = [headers[header] ?? [], texts(values, 'as-user-extra')].flat()
    if (all.length > 0) headers[header] = all
  }
  if (name === '' && Object.keys(headers).length > 0) {
    throw new ConfigError(`${where}: as-uid, as-groups and as-user-extra need as, the user's name`)
  }
  return headers
}

/** The text in the form that Node sends as UTF-8. */
function headerValue(value: unknown, place: string): string {
  const text = asString(value)
  if (text === undefined) throw new ConfigError(`${place} is not a text; put it into quotes`)
  if (/[\0-\x08\x0a-\x1f\x7f]/.test(text)) {
    throw new ConfigError(`${place} has a line break or another control character`)
  }
  return Buffer.from(text).toString('latin1')
}

/** Bytes that no name of a header can have, as %XX. */
function escaped(key: string): string {
  return Buffer.from(key)
    .toString('latin1')
    .replaceAll(
      /[^!#$&'*+.^_`|~0-9a-z-]/g,
      (byte) => `%${byte.charCodeAt(0).toString(16).toUpperCase().padStart(2, '0')}`,
    )
}
