import { LineCounter, parseAllDocuments } from 'yaml'
import { asArray, asObject, asString, parseJson, show, type Json } from '../state/json.js'
import { messageOf } from '../errors.js'
import { tooDeep } from '../yaml-levels.js'
import type { ObjectKind } from './source.js'

type ManifestKind = ObjectKind | 'Endpoints'

/** One object as a manifest holds it. */
export interface ManifestObject<K extends ManifestKind = ManifestKind> {
  readonly kind: K
  readonly namespace: string
  readonly name: string
  readonly raw: Json
  /** `file:line` of its document. */
  readonly place: string
}

export interface ManifestFile {
  readonly objects: readonly ManifestObject[]
  /** `file:line: reason`. A file with a problem is not used at all. */
  readonly problems: readonly string[]
}

/** The thread that answers health checks takes a few milliseconds for so many. */
export const objectsOfPart = 100

/** The apiVersions that are read, by kind. Other kinds in a manifest are ignored. */
const known: Readonly<Record<string, readonly string[]>> = {
  Service: ['v1'],
  Endpoints: ['v1'],
  Node: ['v1'],
  EndpointSlice: ['discovery.k8s.io/v1'],
  ServiceCIDR: ['networking.k8s.io/v1', 'networking.k8s.io/v1beta1'],
}

const withoutNamespace: ReadonlySet<string> = new Set(['Node', 'ServiceCIDR'])

/** Reads JSON or YAML, also with several documents, and the items of lists. Never throws. */
export function parseManifest(text: string, file: string): ManifestFile {
  // The YAML reader would take seconds for the dump of a large cluster. It reads JSON too, and tells
  // the line of an error.
  const json = /^\s*[{[]/.test(text) ? parseJson(text) : undefined
  const found = json === undefined ? [...readYaml(text, file)] : readObject(json, `${file}:1`)
  return {
    objects: found.filter((each) => typeof each !== 'string'),
    problems: found.filter((each) => typeof each === 'string'),
  }
}

/** Gives objects, and what is wrong with others. */
function* readYaml(text: string, file: string): Iterable<ManifestObject | string> {
  const deep = tooDeep(text, file)
  if (deep !== undefined) {
    yield deep
    return
  }
  const lineCounter = new LineCounter()
  const place = (offset: number) => `${file}:${lineCounter.linePos(offset).line}`
  // Templates have maps as keys. The parser would print warnings of its own about them.
  const options = { lineCounter, prettyErrors: false, merge: true, logLevel: 'error' } as const
  const documents = parseAllDocuments(text, options)
  if (!Array.isArray(documents)) return
  for (const document of documents) {
    // The first error may cause hundreds behind it, as in a file that is no YAML.
    const [error] = document.errors
    if (error) yield `${place(error.pos[0])}: ${error.message}`
    if (error || document.contents === null) continue
    const at = place(document.contents.range[0])
    try {
      const value: unknown = document.toJS()
      if (value !== null) yield* readObject(value, at)
    } catch (error) {
      // The document has aliases that would grow without limit.
      yield `${at}: ${messageOf(error)}`
    }
  }
}

/**
 * Reads one value of a manifest: gives its object, the items of a list, or what is wrong with it.
 */
export function readObject(
  value: unknown,
  place: string,
  itemKind?: { readonly kind: string; readonly apiVersion: string },
): readonly (ManifestObject | string)[] {
  const raw = asObject(value)
  if (!raw) return [`${place}: ${show(value)} is not an object`]
  const kind = asString(raw.kind) ?? itemKind?.kind
  const apiVersion = asString(raw.apiVersion) ?? itemKind?.apiVersion
  if (kind === undefined || apiVersion === undefined) {
    return [`${place}: apiVersion or kind is missing`]
  }
  const items = kind.endsWith('List') ? asArray(raw.items) : undefined
  if (items) {
    // Items of a ServiceList have no kind of their own; items of a plain List have one.
    const of = kind === 'List' ? undefined : { kind: kind.slice(0, -4), apiVersion }
    return items.flatMap((item) => readObject(item, place, of))
  }
  const versions = Object.hasOwn(known, kind) ? known[kind] : undefined
  if (!versions || !isKind(kind)) return []
  if (!versions.includes(apiVersion)) {
    // A Service of another API group, such as Knative's, is ignored. An old version is a problem.
    return apiVersion.split('/')[0] === versions[0]?.split('/')[0]
      ? [`${place}: ${kind} of ${show(apiVersion)} is not read; write apiVersion: ${versions[0]}`]
      : []
  }
  const metadata = asObject(raw.metadata)
  const name = asString(metadata?.name)
  if (name === undefined) return [`${place}: ${kind}: metadata.name is missing`]
  if (withoutNamespace.has(kind)) {
    return [{ kind, namespace: '', name, raw: { ...raw, kind, apiVersion }, place }]
  }
  const namespace = asString(metadata?.namespace) ?? 'default'
  const complete = { ...raw, kind, apiVersion, metadata: { namespace, ...metadata } }
  return [{ kind, namespace, name, raw: complete, place }]
}

function isKind(kind: string): kind is ManifestKind {
  return Object.hasOwn(known, kind)
}
