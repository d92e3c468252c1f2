import { apiVersionOf, type ResourceKind } from '../resources.js'
import type { JsonObject } from '../json.js'
import { fieldsOf, fieldWordsOf, isKnown, wordsOf, type Field } from './field-words.js'

/** What `kubectl explain` shows: the fields of the table of messages and of the tables of words, with their words. */
export function schemasOf(kinds: readonly ResourceKind[]): JsonObject {
  const schemas: Record<string, JsonObject> = {}
  /** Adds the parts that these fields lead to. */
  const follow = (fields: readonly Field[]): void => {
    for (const name of fields.map(({ type }) => elementOf(type))) {
      if (!isPart(name) || Object.hasOwn(schemas, name)) continue
      schemas[name] = described(wordsOf(name), bodyOf(name, fieldsOf(name)))
      follow(fieldsOf(name))
    }
  }
  for (const kind of kinds) {
    const name = nameOf(kind)
    const fields = allFieldsOf(kind, name)
    follow(fields)
    const { group, version, kind: kindName } = kind
    schemas[`${apiVersionOf(kind)}.${kindName}`] = {
      ...described(wordsOf(name), bodyOf(name, fields)),
      'x-kubernetes-group-version-kind': [{ group, version, kind: kindName }],
    }
  }
  return schemas
}

/** The name of a kind in the tables; `*` if its fields are unknown. */
function nameOf(kind: ResourceKind): string {
  const names = [`${apiVersionOf(kind)}/${kind.kind}`, kind.kind]
  return (kind.isCustom === true ? undefined : names.find(isKnown)) ?? '*'
}

function allFieldsOf(kind: ResourceKind, name: string): readonly Field[] {
  const all = [
    ...['apiVersion', 'kind'].map((field) => ({ name: field, type: 'text' })),
    { name: 'metadata', type: 'ObjectMeta' },
    ...fieldsOf(name),
    ...(kind.subresources.includes('status') ? [{ name: 'status', type: 'object' }] : []),
  ]
  return all.filter((field, at) => all.findIndex((each) => each.name === field.name) === at)
}

function described(words: string | undefined, body: JsonObject): JsonObject {
  return words === undefined ? body : { ...body, description: words }
}

function bodyOf(name: string, fields: readonly Field[]): JsonObject {
  const properties = fields.map((field) => {
    const words = fieldWordsOf(name, field.name)
    return [field.name, described(words, typeOf(field.type))] as const
  })
  return { type: 'object', properties: Object.fromEntries(properties) }
}

const elementOf = (type: string) => type.replace('[]', '')

const plainTypes: Readonly<Record<string, JsonObject>> = {
  text: { type: 'string' },
  number: { type: 'integer' },
  bool: { type: 'boolean' },
  time: { type: 'string', format: 'date-time' },
  bytes: { type: 'string', format: 'byte' },
  object: { type: 'object' },
  textMap: { type: 'object', additionalProperties: { type: 'string' } },
  bytesMap: { type: 'object', additionalProperties: { type: 'string', format: 'byte' } },
  // On the wire it is a message, and in JSON a number or a text.
  IntOrString: { type: 'string', format: 'int-or-string' },
}

function isPart(type: string): boolean {
  return plainTypes[type] === undefined && isKnown(type)
}

function typeOf(type: string): JsonObject {
  if (type.endsWith('[]')) return { type: 'array', items: typeOf(elementOf(type)) }
  return plainTypes[type] ?? { allOf: [{ $ref: `#/components/schemas/${type}` }] }
}
