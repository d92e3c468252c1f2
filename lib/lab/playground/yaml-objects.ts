import { parseAllDocuments, stringify } from 'yaml'
import { textAt, type Json, type JsonObject } from '../apiserver/json.js'
import { apiVersionOf, type ResourceKind } from '../apiserver/resources.js'
import { ConfigError } from '../../errors.js'
import { pathOf } from '../apiserver/target.js'
import type { ApiServer } from '../apiserver/server.js'
import type { ObjectLine } from '../../page/view.js'

/** The kinds in the list, the most useful first. */
const shown: readonly (readonly [apiVersion: string, kind: string, collection: string])[] = [
  ['v1', 'Service', 'services'],
  ['discovery.k8s.io/v1', 'EndpointSlice', 'endpointslices.discovery.k8s.io'],
  ['apps/v1', 'Deployment', 'deployments.apps'],
  ['v1', 'Pod', 'pods'],
  ['v1', 'Node', 'nodes'],
]

/** The objects of the playground as YAML, read from and written through its API server. */
export class YamlObjects {
  readonly #api: ApiServer

  constructor(api: ApiServer) {
    this.#api = api
  }

  list(): readonly ObjectLine[] {
    return shown.flatMap(([apiVersion, kind, collection]) =>
      this.#api.registry.store.list(collection).map(({ metadata }) => ({
        apiVersion,
        kind,
        namespace: metadata.namespace ?? '',
        name: metadata.name,
      })),
    )
  }

  /** As `kubectl get -o yaml` shows it; undefined when there is none. */
  read(line: ObjectLine): string | undefined {
    const { apiVersion, kind, namespace, name } = line
    const found = this.#api.get({ apiVersion, kind, name, namespace: namespace || 'default' })
    if (!found) return undefined
    const { managedFields: _who, ...metadata } = found.metadata
    return stringify({ ...found, metadata }, { lineWidth: 0 })
  }

  /**
   * Sends every document to the API server, which replaces existing objects and creates new ones.
   * Throws the error text of the API server. Returns the arguments of `kubectl`.
   */
  async apply(text: string): Promise<string> {
    const documents = parseAllDocuments(text)
    const broken = documents.flatMap(({ errors }) => errors)[0]
    if (broken) throw new ConfigError(`read the YAML: ${broken.message}`)
    const objects = documents.map((document) => document.toJS() as Json).filter(isObject)
    if (objects.length === 0) throw new ConfigError('read the YAML: there is no object in it')
    let verb = 'replace'
    for (const object of objects) verb = await this.#send(object)
    const plain = objects.map((object) => stringify(withoutServerFields(object), { lineWidth: 0 }))
    return `${verb} -f - <<'EOF'\n${plain.join('---\n')}EOF`
  }

  async #send(object: JsonObject): Promise<'replace' | 'create'> {
    const kind = this.#kindOf(object)
    const namespace = textAt(object, 'metadata', 'namespace') || 'default'
    const name = textAt(object, 'metadata', 'name')
    const collection = pathOf(kind, kind.namespaced ? encodeURIComponent(namespace) : undefined)
    const isThere = this.#api.get({
      apiVersion: apiVersionOf(kind),
      kind: kind.kind,
      name,
      namespace,
    })
    const base = await this.#api.listening()
    const path = isThere ? `${collection}/${encodeURIComponent(name)}` : collection
    const response = await fetch(`${base}${path}?fieldValidation=Strict&fieldManager=playground`, {
      method: isThere ? 'PUT' : 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify(object),
    })
    const answer = (await response.json()) as Json
    if (!response.ok) throw new ConfigError(`Error from server: ${textAt(answer, 'message')}`)
    return isThere ? 'replace' : 'create'
  }

  #kindOf(object: JsonObject): ResourceKind {
    const apiVersion = textAt(object, 'apiVersion')
    const name = textAt(object, 'kind')
    const kind = this.#api.registry.resources.byKind(apiVersion, name)
    if (kind) return kind
    throw new ConfigError(
      `no matches for kind ${JSON.stringify(name)} in version ${JSON.stringify(apiVersion)}`,
    )
  }
}

function isObject(value: Json): value is JsonObject {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

const ofServer = ['resourceVersion', 'uid', 'creationTimestamp', 'generation', 'managedFields']

/** Without these fields the same text can be sent again, to any cluster. */
function withoutServerFields(object: JsonObject): JsonObject {
  const { status: _status, metadata, ...rest } = object
  const kept = Object.entries((metadata ?? {}) as JsonObject).filter(
    ([key]) => !ofServer.includes(key),
  )
  return { ...rest, metadata: Object.fromEntries(kept) }
}
