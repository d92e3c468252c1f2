import { readFile } from 'node:fs/promises'
import { LineCounter, parseAllDocuments } from 'yaml'
import { ConfigError, messageOf } from '../../errors.js'
import { scan } from '../../kernel/follow-path.js'
import { tooDeep } from '../../yaml-levels.js'
import { strictly, withKnownFields } from './field-validation.js'
import { isList, isObject, objectAt, textAt, type Json } from './json.js'
import type { NewObject } from './object.js'
import type { ApiServer } from './server.js'

/** An object of a file, with `file:line` of its document. */
interface ManifestObject {
  readonly object: NewObject
  readonly place: string
}

/** Kinds that other objects need come first. */
const firstKinds = ['Namespace', 'CustomResourceDefinition', 'Node', 'ServiceCIDR']

/** Puts all objects of a file or folder into a server; throws ConfigError at the first bad one. */
export async function seedFrom(path: string, api: ApiServer): Promise<void> {
  const all = await readManifests(path)
  const isLater = ({ object }: ManifestObject) => Number(!firstKinds.includes(object.kind))
  for (const { object, place } of all.toSorted((left, right) => isLater(left) - isLater(right))) {
    try {
      withKnownFields(object, object.kind, strictly)
      api.put(object)
    } catch (cause) {
      throw new ConfigError(`${place}: ${messageOf(cause)}`, { cause })
    }
  }
}

export async function readManifests(path: string): Promise<readonly ManifestObject[]> {
  const { files } = await scan(path, (name) => /\.(ya?ml|json)$/.test(name)).catch(
    (cause: unknown) => {
      throw new ConfigError(`read manifests: ${messageOf(cause)}`, { cause })
    },
  )
  if (files.size === 0) {
    throw new ConfigError(
      `read manifests: ${path} is no file, and no folder with .yaml or .json files`,
    )
  }
  const found: ManifestObject[] = []
  for (const file of files.keys()) found.push(...parseText(await readFile(file, 'utf8'), file))
  return found
}

function parseText(text: string, file: string): readonly ManifestObject[] {
  const deep = tooDeep(text, file)
  if (deep !== undefined) throw new ConfigError(deep)
  const lineCounter = new LineCounter()
  const place = (offset: number) => `${file}:${lineCounter.linePos(offset).line}`
  const documents = parseAllDocuments(text, { lineCounter, prettyErrors: false, merge: true })
  return documents.flatMap((document) => {
    const [error] = document.errors
    if (error) throw new ConfigError(`${place(error.pos[0])}: ${error.message}`)
    if (document.contents === null) return []
    return objectsIn(document.toJS() as Json, place(document.contents.range[0]))
  })
}

function objectsIn(value: Json, place: string): readonly ManifestObject[] {
  if (value === null) return []
  const kind = textAt(value, 'kind')
  const apiVersion = textAt(value, 'apiVersion')
  if (!isObject(value) || kind === '' || apiVersion === '') {
    throw new ConfigError(`${place}: no API object: apiVersion or kind is missing`)
  }
  const items = value['items']
  if (kind.endsWith('List') && isList(items)) {
    const item = kind === 'List' ? {} : { apiVersion, kind: kind.slice(0, -4) }
    return items.flatMap((each) => objectsIn(isObject(each) ? { ...item, ...each } : each, place))
  }
  return [{ object: { ...value, apiVersion, kind, metadata: objectAt(value, 'metadata') }, place }]
}
