import { isList, isObject, textAt, type Json, type JsonObject } from './json.js'
import { messages } from './protobuf/messages.js'
import { badRequest } from './status.js'

/** Kinds whose fields are all known here, so that an unknown field is a mistake. */
const checked: ReadonlySet<string> = new Set(['Service', 'ConfigMap', 'Deployment'])

/** Messages of which only some fields are known. Unknown fields in them are accepted. */
const partly: ReadonlySet<string> = new Set(['ObjectMeta', 'PodSpec', 'DeploymentStrategy'])

/**
 * Fields that are not in the table of messages, because clients do not create objects with them.
 */
const alsoKnown: ReadonlySet<string> = new Set(['apiVersion', 'kind', 'status'])

/** The parts of a call that are used here. */
interface FieldCall {
  readonly query: URLSearchParams
  warn(text: string): void
}

/** Refuses unknown fields, warns about them, or does neither, as `fieldValidation` asks. */
export function checkFields(body: JsonObject, kind: string, call: FieldCall): void {
  const mode = call.query.get('fieldValidation') ?? 'Warn'
  if (mode === 'Ignore' || !checked.has(kind)) return
  const unknown = unknownFields(body, kind, '')
  if (unknown.length === 0) return
  const texts = unknown.map((path) => `unknown field ${JSON.stringify(path)}`)
  if (mode === 'Strict') {
    throw badRequest(
      `${kind} in version "${textAt(body, 'apiVersion')}" cannot be handled as a ${kind}: strict decoding error: ${texts.join(', ')}`,
    )
  }
  for (const text of texts) call.warn(text)
}

function unknownFields(object: JsonObject, message: string, path: string): readonly string[] {
  if (partly.has(message)) return []
  return Object.entries(object).flatMap(([name, value]) => {
    const at = path === '' ? name : `${path}.${name}`
    const field = messages.get(message)?.find((each) => each.name === name)
    if (field !== undefined) return within(value, field.type, at)
    return path === '' && alsoKnown.has(name) ? [] : [at]
  })
}

function within(value: Json | undefined, type: string, path: string): readonly string[] {
  const message = type.replace('[]', '')
  if (!messages.has(message)) return []
  if (isObject(value)) return unknownFields(value, message, path)
  if (!isList(value)) return []
  return value.flatMap((item, index) =>
    isObject(item) ? unknownFields(item, message, `${path}[${index}]`) : [],
  )
}
