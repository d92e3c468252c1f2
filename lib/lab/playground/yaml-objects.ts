import { parseAllDocuments, stringify } from 'yaml'
import { isObject, textAt, type Json, type JsonObject } from '../apiserver/json.js'
import type { ResourceKind } from '../apiserver/resources.js'
import { isKubernetes } from './cluster-objects.js'
import type { KubeObject } from '../apiserver/object.js'
import { pause } from '../../async.js'
import { ConfigError } from '../../errors.js'
import { isEqual } from '../../state/json.js'
import { tooDeep } from '../../yaml-levels.js'
import { ApiError } from '../apiserver/status.js'
import { firstNamespaces } from '../apiserver/strategies.js'
import { strictly, withKnownFields } from '../apiserver/field-validation.js'
import type { ApiObjects } from '../apiserver/objects.js'
import type { ObjectLine } from '../../page/view.js'

/** The kinds in the list, the most useful first. */
const shown: readonly (readonly [apiVersion: string, kind: string, collection: string])[] = [
  ['v1', 'Service', 'services'],
  ['discovery.k8s.io/v1', 'EndpointSlice', 'endpointslices.discovery.k8s.io'],
  ['apps/v1', 'Deployment', 'deployments.apps'],
  ['v1', 'Pod', 'pods'],
  ['v1', 'Node', 'nodes'],
]

/** The last line of the list: all that a user could have written, in one text. */
const everything: ObjectLine = { apiVersion: 'v1', kind: 'List', namespace: '', name: 'all' }
/** What others refer to comes first. Nodes are left out: another cluster has its own. */
const written = [
  'namespaces',
  'services',
  'endpointslices.discovery.k8s.io',
  'deployments.apps',
  'replicasets.apps',
  'pods',
]

const sentAtOnce = 10

/** The objects of the playground as YAML, read from and written through its API server. */
export class YamlObjects {
  readonly #api: ApiObjects

  constructor(api: ApiObjects) {
    this.#api = api
  }

  list(): readonly ObjectLine[] {
    const each = shown.flatMap(([apiVersion, kind, collection]) =>
      this.#own(collection).map(({ metadata }) => ({
        apiVersion,
        kind,
        namespace: metadata.namespace ?? '',
        name: metadata.name,
      })),
    )
    return [...each, everything]
  }

  /** As `kubectl get -o yaml` shows it; undefined when there is none. */
  read(line: ObjectLine): string | undefined {
    if (isEqual(line, everything)) return this.#all()
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
    const deep = tooDeep(text)
    if (deep !== undefined) throw new ConfigError(`read the YAML: ${deep}`)
    const documents = parseAllDocuments(text)
    const broken = documents.flatMap(({ errors }) => errors)[0]
    if (broken) throw new ConfigError(`read the YAML: ${broken.message}`)
    const objects = documents.map((document) => document.toJS() as Json).filter(isObject)
    if (objects.length === 0) throw new ConfigError('read the YAML: there is no object in it')
    let verb = 'replace'
    for (const [index, object] of objects.entries()) {
      // This process reads the daemon's log, and the daemon waits for its reader only a moment.
      if (index % sentAtOnce === 0) await pause(0, undefined)
      verb = this.#send(object)
    }
    return `${verb} -f - <<'EOF'\n${plain(objects)}EOF`
  }

  /** It makes the same cluster again, so it leaves out what controllers make of the rest. */
  #all(): string {
    return plain(written.flatMap((collection) => this.#own(collection)).filter(isByHand))
  }

  #own(collection: string): readonly KubeObject[] {
    return this.#api.registry.store.list(collection).filter((object) => !isKubernetes(object))
  }

  #send(object: JsonObject): 'replace' | 'create' {
    const kind = this.#kindOf(object)
    const { registry } = this.#api
    const namespace = kind.namespaced
      ? textAt(object, 'metadata', 'namespace') || 'default'
      : undefined
    const write = { fieldManager: 'playground' }
    try {
      withKnownFields(object, kind.kind, strictly)
      const isThere = registry.find(kind, namespace, textAt(object, 'metadata', 'name'))
      if (isThere) registry.update(kind, object, write)
      else registry.create(kind, object, write)
      return isThere ? 'replace' : 'create'
    } catch (error) {
      if (!(error instanceof ApiError)) throw error
      throw new ConfigError(`Error from server: ${error.message}`)
    }
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

function isByHand({ kind, metadata }: KubeObject): boolean {
  if (kind === 'Namespace') return !firstNamespaces.includes(metadata.name)
  return (metadata.ownerReferences ?? []).length === 0
}

const ofServer = ['resourceVersion', 'uid', 'creationTimestamp', 'generation', 'managedFields']

/** Texts that can be sent again, to any cluster. */
function plain(objects: readonly JsonObject[]): string {
  const texts = objects.map(({ status: _status, metadata, ...rest }) => {
    const all = Object.entries((metadata ?? {}) as JsonObject)
    const kept = Object.fromEntries(all.filter(([key]) => !ofServer.includes(key)))
    return stringify({ ...rest, metadata: kept }, { lineWidth: 0 })
  })
  return texts.join('---\n')
}
