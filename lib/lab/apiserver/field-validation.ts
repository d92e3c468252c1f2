import { isList, isObject, textAt, type Json, type JsonObject } from './json.js'
import { messages } from './protobuf/messages.js'
import { badRequest } from './status.js'

/** Kinds whose fields are all known here, so that an unknown field is a mistake. */
const checked: ReadonlySet<string> = new Set(['v1 Service', 'v1 ConfigMap', 'apps/v1 Deployment'])

/** Messages of which only some fields are known. Unknown fields in them are accepted. */
const partly: ReadonlySet<string> = new Set(['ObjectMeta', 'PodSpec', 'DeploymentStrategy'])

/**
 * Fields that are not in the table of messages, because clients do not create objects with them.
 */
const alsoKnown: ReadonlySet<string> = new Set(['apiVersion', 'kind', 'status'])

/** An unknown field is an error, as with kubectl. */
export const strictly: FieldCall = {
  query: new URLSearchParams({ fieldValidation: 'Strict' }),
  warn: () => undefined,
}

/** The parts of a call that are used here. */
interface FieldCall {
  readonly query: URLSearchParams
  warn(text: string): void
}

/**
 * The object without unknown fields. It refuses them, warns about them, or does neither, as
 * `fieldValidation` asks. One that was stored would be refused with every later patch.
 */
export function withKnownFields(body: JsonObject, kind: string, call: FieldCall): JsonObject {
  if (!checked.has(`${textAt(body, 'apiVersion')} ${kind}`)) return body
  const unknown: string[] = []
  const known = knownFields(body, kind, '', unknown)
  const texts = unknown.map((path) => `unknown field ${JSON.stringify(path)}`)
  const mode = call.query.get('fieldValidation') ?? 'Warn'
  if (mode === 'Strict' && texts.length > 0) {
    throw badRequest(
      `${kind} in version "${textAt(body, 'apiVersion')}" cannot be handled as a ${kind}: strict decoding error: ${texts.join(', ')}`,
    )
  }
  if (mode !== 'Ignore') for (const text of texts) call.warn(text)
  return known
}

/** Adds the paths of unknown fields to `unknown`. */
function knownFields(
  object: JsonObject,
  message: string,
  path: string,
  unknown: string[],
): JsonObject {
  if (partly.has(message)) return object
  const entries = Object.entries(object).flatMap(([name, value]) => {
    const at = path === '' ? name : `${path}.${name}`
    const field = messages.get(message)?.find((each) => each.name === name)
    if (field !== undefined) return [[name, within(value, field.type, at, unknown)] as const]
    if (path === '' && alsoKnown.has(name)) return [[name, value] as const]
    unknown.push(at)
    return []
  })
  return Object.fromEntries(entries)
}

function within(
  value: Json | undefined,
  type: string,
  path: string,
  unknown: string[],
): Json | undefined {
  const message = type.replace('[]', '')
  if (!messages.has(message)) return value
  if (isObject(value)) return knownFields(value, message, path, unknown)
  if (!isList(value)) return value
  return value.map((item, index) =>
    isObject(item) ? knownFields(item, message, `${path}[${index}]`, unknown) : item,
  )
}
