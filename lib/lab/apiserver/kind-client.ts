import type { JsonObject } from './json.js'
import type { KubeObject } from './object.js'
import type { DeleteOptions, Registry } from './registry.js'
import { collectionOf, type ResourceKind } from './resources.js'
import type { StoreListener } from './store.js'

/** Reads and writes the objects of one kind inside this process. */
export class KindClient {
  readonly #registry: Registry
  readonly #kind: ResourceKind

  constructor(registry: Registry, kind: ResourceKind) {
    this.#registry = registry
    this.#kind = kind
  }

  /** The version of the whole store. */
  get version(): number {
    return this.#registry.store.version
  }

  list(): readonly KubeObject[] {
    return this.#registry.store.list(collectionOf(this.#kind))
  }

  /** By the key of the store: see `keyOf`. */
  get(key: string): KubeObject | undefined {
    return this.#registry.store.get(collectionOf(this.#kind), key)
  }

  create(object: JsonObject): KubeObject {
    return this.#registry.create(this.#kind, object)
  }

  /** Creates or replaces the object, status included. */
  put(object: JsonObject): KubeObject {
    return this.#registry.put(this.#kind, object)
  }

  update(object: JsonObject): KubeObject {
    return this.#registry.update(this.#kind, object)
  }

  updateStatus(object: KubeObject, status: JsonObject): KubeObject {
    return this.#registry.update(this.#kind, { ...object, status }, { subresource: 'status' })
  }

  delete({ metadata }: KubeObject, options?: DeleteOptions): KubeObject {
    return this.#registry.delete(this.#kind, metadata.namespace, metadata.name, options)
  }

  subscribe(listener: StoreListener): () => void {
    return this.#registry.store.subscribe(collectionOf(this.#kind), listener)
  }
}

const kinds = {
  nodes: ['v1', 'Node'],
  pods: ['v1', 'Pod'],
  services: ['v1', 'Service'],
  endpoints: ['v1', 'Endpoints'],
  events: ['v1', 'Event'],
  slices: ['discovery.k8s.io/v1', 'EndpointSlice'],
  deployments: ['apps/v1', 'Deployment'],
  sets: ['apps/v1', 'ReplicaSet'],
} as const

export type Clients = Readonly<Record<keyof typeof kinds, KindClient>>

/** A client for each kind that something in this process works on; this server has all of them. */
export function clientsOf(registry: Registry): Clients {
  const clients = Object.entries(kinds).map(([name, [version, kind]]) => {
    const resource = registry.resources.byKind(version, kind)
    if (resource === undefined) throw new RangeError(`this API server has no kind ${kind}`)
    return [name, new KindClient(registry, resource)] as const
  })
  return Object.fromEntries(clients) as Record<keyof typeof kinds, KindClient>
}
