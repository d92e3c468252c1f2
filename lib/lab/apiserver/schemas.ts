import { fieldWords } from './field-words.js'
import { messages, type MessageField } from './protobuf/messages.js'
import { apiVersionOf, type ResourceKind } from './resources.js'
import type { JsonObject } from './json.js'

/** What `kubectl explain` shows: the fields of the table of messages, with the words of the table of words. */
export function schemasOf(kinds: readonly ResourceKind[]): JsonObject {
  const schemas: Record<string, JsonObject> = {}
  /** Adds the messages that these fields lead to. */
  const follow = (fields: readonly MessageField[]): void => {
    for (const name of fields.map(({ type }) => elementOf(type))) {
      if (!messages.has(name) || Object.hasOwn(schemas, name)) continue
      schemas[name] = described(fieldWords.get(name), propertiesOf(name))
      follow(fieldsOf(name))
    }
  }
  for (const kind of kinds) {
    const message = messageOf(kind)
    follow(fieldsOf(message))
    const { group, version, kind: name } = kind
    schemas[`${apiVersionOf(kind)}.${name}`] = {
      ...described(wordsOf(kind), {
        apiVersion: { type: 'string', description: fieldWords.get('TypeMeta.apiVersion') },
        kind: { type: 'string', description: fieldWords.get('TypeMeta.kind') },
        ...propertiesOf(message),
        ...(kind.subresources.includes('status') ? { status: statusField } : {}),
      }),
      'x-kubernetes-group-version-kind': [{ group, version, kind: name }],
    }
  }
  return schemas
}

const statusField = { type: 'object', description: fieldWords.get('status') }

/** A message with metadata and nothing else. */
const metadataOnly = 'Namespace'

/** The message of a kind. One that is not in the table has its metadata at least. */
function messageOf(kind: ResourceKind): string {
  const names = [kind.kind, `${apiVersionOf(kind)}/${kind.kind}`]
  const found = kind.isCustom === true ? undefined : names.find((name) => messages.has(name))
  return found ?? metadataOnly
}

function wordsOf({ kind, isCustom }: ResourceKind): string | undefined {
  return (isCustom === true ? undefined : fieldWords.get(kind)) ?? fieldWords.get('')
}

function fieldsOf(message: string): readonly MessageField[] {
  return messages.get(message) ?? []
}

function described(description: string | undefined, properties: JsonObject): JsonObject {
  return { type: 'object', ...(description === undefined ? {} : { description }), properties }
}

function propertiesOf(message: string): JsonObject {
  return Object.fromEntries(
    fieldsOf(message).map(({ name, type }) => {
      const words = fieldWords.get(`${message}.${name}`) ?? fieldWords.get(`*.${name}`)
      return [name, { ...typeOf(type), ...(words === undefined ? {} : { description: words }) }]
    }),
  )
}

const elementOf = (type: string) => type.replace('[]', '')

const plainTypes: Readonly<Record<string, JsonObject>> = {
  text: { type: 'string' },
  number: { type: 'integer' },
  bool: { type: 'boolean' },
  time: { type: 'string', format: 'date-time' },
  bytes: { type: 'string', format: 'byte' },
  textMap: { type: 'object', additionalProperties: { type: 'string' } },
  bytesMap: { type: 'object', additionalProperties: { type: 'string', format: 'byte' } },
  // On the wire it is a message, and in JSON a number or a text.
  IntOrString: { type: 'string', format: 'int-or-string' },
}

function typeOf(type: string): JsonObject {
  if (type.endsWith('[]')) return { type: 'array', items: typeOf(elementOf(type)) }
  return plainTypes[type] ?? { allOf: [{ $ref: `#/components/schemas/${type}` }] }
}
