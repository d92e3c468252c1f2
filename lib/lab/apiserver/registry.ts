import { numberAt, textAt, type Json, type JsonObject } from './json.js'
import { validateAnnotations, validateLabels, validateName } from './names.js'
import {
  randomUid,
  checkPreconditions,
  contentChanged,
  equalButVersion,
  generateName,
  serverFields,
  withoutFinalizers,
  withoutUndefined,
} from './write-rules.js'
import { parseObject, type KubeObject } from './object.js'
import { afterUpdate } from './patch/managed-fields.js'
import { apiVersionOf, collectionOf, type ResourceKind, type ResourceTable } from './resources.js'
import { alreadyExists, badRequest, notFound, refuse } from './status.js'
import { collectionKey, type VersionedStore } from './store.js'

/** The rules for writing one kind. */
export interface Strategy {
  /** The object as it will be stored: defaulted, validated, allocated; throws ApiError. */
  prepare(object: KubeObject, previous: KubeObject | undefined, kind: ResourceKind): KubeObject
  /** Removes what cannot exist without the object. */
  beforeRemoval?(object: KubeObject, registry: Registry): void
}

interface RegistryDeps {
  readonly store: VersionedStore
  readonly resources: ResourceTable
  /** By collection. */
  readonly strategies: ReadonlyMap<string, Strategy>
  readonly now: () => number
}

export interface WriteOptions {
  readonly dryRun?: boolean
  /** Only this part of the object is written. */
  readonly subresource?: 'status'
  /** Writes the status, too, as when seeding. A client cannot do that in one request. */
  readonly keepStatus?: boolean
  readonly warn?: (text: string) => void
  /** Recorded as the owner of the fields that change. */
  readonly fieldManager?: string
}

export interface DeleteOptions {
  /** Whether what the object owns stays. */
  readonly orphans?: boolean
  readonly dryRun?: boolean
  readonly gracePeriodSeconds?: number
  readonly uid?: string
  readonly resourceVersion?: string
}

/** Reads and writes objects under the API's rules, for HTTP, controllers and tests alike. */
export class Registry {
  readonly store: VersionedStore
  readonly resources: ResourceTable
  readonly #strategies: ReadonlyMap<string, Strategy>
  readonly now: () => number

  constructor(deps: RegistryDeps) {
    this.store = deps.store
    this.resources = deps.resources
    this.#strategies = deps.strategies
    this.now = deps.now
  }

  find(kind: ResourceKind, namespace: string | undefined, name: string): KubeObject | undefined {
    return this.store.get(collectionOf(kind), collectionKey(namespace, name))
  }

  get(kind: ResourceKind, namespace: string | undefined, name: string): KubeObject {
    const found = this.find(kind, namespace, name)
    if (found === undefined) throw notFound(kind, name)
    return found
  }

  create(kind: ResourceKind, input: JsonObject, options: WriteOptions = {}): KubeObject {
    const parsed = this.#parse(kind, input)
    const { metadata } = parsed
    if ((metadata.resourceVersion ?? '') !== '') {
      throw badRequest('resourceVersion should not be set on objects to be created')
    }
    const name = metadata.name || generateName(metadata.generateName ?? '')
    this.#requireNamespace(kind, metadata.namespace)
    if (name !== '' && this.find(kind, metadata.namespace, name)) throw alreadyExists(kind, name)
    if (kind.caution !== undefined) options.warn?.(`${kind.kind} ${name} ${kind.caution}`)
    const keepsStatus =
      options.keepStatus === true ||
      kind.keepsFirstStatus === true ||
      !kind.subresources.includes('status')
    const object: KubeObject = {
      ...parsed,
      metadata: {
        ...withoutFinalizers(metadata, options.warn),
        name,
        uid: randomUid(),
        creationTimestamp: this.timestamp(),
        ...(kind.countsGenerations ? { generation: 1 } : {}),
      },
      ...(keepsStatus ? {} : { status: undefined }),
    }
    return this.#write(kind, object, undefined, options)
  }

  update(kind: ResourceKind, input: JsonObject, options: WriteOptions = {}): KubeObject {
    const parsed = this.#parse(kind, input)
    const { name, namespace } = parsed.metadata
    const previous = this.get(kind, namespace, name)
    checkPreconditions(kind, previous, parsed.metadata)
    if (options.subresource === 'status') {
      return this.#write(kind, { ...previous, status: parsed['status'] }, previous, options)
    }
    const keepsStatus = options.keepStatus === true || !kind.subresources.includes('status')
    const status = keepsStatus ? parsed['status'] : previous['status']
    const metadata = {
      ...withoutFinalizers(parsed.metadata, options.warn),
      ...serverFields(previous.metadata),
    }
    const object = { ...parsed, metadata, status }
    return this.#write(kind, object, previous, options)
  }

  /** Creates or replaces, status included: for manifests and for tests. */
  put(kind: ResourceKind, input: JsonObject): KubeObject {
    const { name, namespace } = this.#parse(kind, input).metadata
    return this.find(kind, namespace, name)
      ? this.update(kind, input, { keepStatus: true })
      : this.create(kind, input, { keepStatus: true })
  }

  delete(
    kind: ResourceKind,
    namespace: string | undefined,
    name: string,
    options: DeleteOptions = {},
  ): KubeObject {
    const object = this.get(kind, namespace, name)
    checkPreconditions(kind, object, options)
    if (options.dryRun === true) return object
    const own = numberAt(object, 'spec', 'terminationGracePeriodSeconds')
    const grace = options.gracePeriodSeconds ?? own ?? 30
    const isScheduled = textAt(object, 'spec', 'nodeName') !== ''
    if (kind.kind === 'Pod' && grace > 0 && isScheduled) {
      return this.#terminate(kind, object, grace)
    }
    this.#strategies.get(collectionOf(kind))?.beforeRemoval?.(object, this)
    if (options.orphans === true) this.#orphan(object)
    return this.store.remove(collectionOf(kind), object) ?? object
  }

  /** Takes the references to the object away before it goes, so nothing is deleted with it. */
  #orphan({ metadata: { uid } }: KubeObject): void {
    for (const collection of new Set(this.resources.all.map(collectionOf))) {
      for (const object of this.store.list(collection)) {
        const { ownerReferences = [], ...rest } = object.metadata
        const others = ownerReferences.filter((each) => each.uid !== uid)
        if (others.length === ownerReferences.length) continue
        const metadata = others.length === 0 ? rest : { ...rest, ownerReferences: others }
        this.store.put(collection, { ...object, metadata })
      }
    }
  }

  timestamp(at = this.now()): string {
    return `${new Date(at).toISOString().slice(0, 19)}Z`
  }

  /** A pod that runs is only marked; the controller that runs it removes it when it has ended. */
  #terminate(kind: ResourceKind, object: KubeObject, grace: number): KubeObject {
    if (object.metadata.deletionTimestamp !== undefined) return object
    return this.store.put(collectionOf(kind), {
      ...object,
      metadata: {
        ...object.metadata,
        deletionTimestamp: this.timestamp(this.now() + grace * 1000),
        deletionGracePeriodSeconds: grace,
      },
    })
  }

  #parse(kind: ResourceKind, input: Json): KubeObject {
    const object = parseObject(input)
    const apiVersion = apiVersionOf(kind)
    if (object.kind !== kind.kind || object.apiVersion !== apiVersion) {
      throw badRequest(
        `${object.kind} in version "${object.apiVersion}" cannot be handled as a ${kind.kind} of ${apiVersion}`,
      )
    }
    const { namespace, ...rest } = object.metadata
    if (!kind.namespaced) return { ...object, metadata: rest }
    const inNamespace = namespace === undefined || namespace === '' ? 'default' : namespace
    const placed = { ...object, metadata: { ...rest, namespace: inNamespace } }
    return kind.storedForm ? kind.storedForm.toStored(placed) : placed
  }

  #write(
    kind: ResourceKind,
    object: KubeObject,
    previous: KubeObject | undefined,
    options: WriteOptions,
  ): KubeObject {
    refuse(kind, object, [
      ...validateName('metadata.name', object.metadata.name, kind.nameRule),
      ...validateLabels('metadata.labels', object.metadata.labels ?? {}),
      ...validateAnnotations('metadata.annotations', object.metadata.annotations ?? {}),
    ])
    const strategy = this.#strategies.get(collectionOf(kind))
    const owned = this.#owned(object, previous, options)
    let prepared = withoutUndefined(strategy?.prepare(owned, previous, kind) ?? owned)
    if (previous !== undefined) {
      if (equalButVersion(prepared, previous)) return previous
      if (kind.countsGenerations && contentChanged(prepared, previous)) {
        const generation = (previous.metadata.generation ?? 0) + 1
        prepared = { ...prepared, metadata: { ...prepared.metadata, generation } }
      }
    }
    return options.dryRun === true ? prepared : this.store.put(collectionOf(kind), prepared)
  }

  #owned(
    object: KubeObject,
    previous: KubeObject | undefined,
    { fieldManager, subresource }: WriteOptions,
  ): KubeObject {
    if (fieldManager === undefined || subresource !== undefined) {
      const managedFields = object.metadata['managedFields'] ?? previous?.metadata['managedFields']
      return { ...object, metadata: { ...object.metadata, managedFields } }
    }
    return afterUpdate(object, previous, { name: fieldManager, time: this.timestamp() })
  }

  #requireNamespace(kind: ResourceKind, namespace: string | undefined): void {
    if (namespace === undefined) return
    if (this.store.get('namespaces', namespace) === undefined) {
      const subject = this.resources.byKind('v1', 'Namespace') ?? kind
      throw notFound(subject, namespace)
    }
  }
}
