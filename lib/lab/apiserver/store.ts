import type { KubeObject } from './object.js'

export type EventType = 'ADDED' | 'MODIFIED' | 'DELETED'

export interface StoreEvent {
  readonly type: EventType
  /** The resource version this change made. */
  readonly version: number
  /** After the change; for a deletion the last content, stamped with the deletion's version. */
  readonly object: KubeObject
  readonly previous: KubeObject | undefined
}

export type StoreListener = (event: StoreEvent) => void

interface Collection {
  readonly objects: Map<string, KubeObject>
  readonly listeners: Set<StoreListener>
  history: StoreEvent[]
  /** Events up to this version are forgotten. */
  compactedAt: number
  /** The objects sorted by key. The list is made at the first read after a change, and kept. */
  sorted: readonly KubeObject[] | undefined
}

/** Changes kept for each kind, from which watches resume. */
const historyLimit = 4000

/**
 * All objects with one counter of versions, as etcd has: every write takes the next number and
 * stays in a bounded history, from which watches resume. Objects are shared by reference and never
 * changed, so a list is a snapshot without a copy.
 */
export class VersionedStore {
  readonly #collections = new Map<string, Collection>()
  #version: number
  /** The version at the start of this process; no earlier history exists. */
  readonly #firstVersion: number

  constructor(firstVersion: number) {
    this.#version = firstVersion
    this.#firstVersion = firstVersion
  }

  get version(): number {
    return this.#version
  }

  get(collection: string, key: string): KubeObject | undefined {
    return this.#collections.get(collection)?.objects.get(key)
  }

  /** All objects of a collection, sorted by namespace and name. */
  list(collection: string): readonly KubeObject[] {
    const found = this.#open(collection)
    found.sorted ??= sortedByKey(found.objects)
    return found.sorted
  }

  /** The collection as it was at an earlier version; undefined when that is compacted. */
  listAt(collection: string, version: number): readonly KubeObject[] | undefined {
    const found = this.#open(collection)
    if (version < found.compactedAt) return undefined
    const objects = new Map(found.objects)
    for (const event of found.history.toReversed()) {
      if (event.version <= version) break
      const key = keyOf(event.object)
      if (event.previous === undefined) objects.delete(key)
      else objects.set(key, event.previous)
    }
    return sortedByKey(objects)
  }

  /** Writes the object under the next version and tells the watchers. */
  put(collection: string, object: KubeObject): KubeObject {
    const target = this.#open(collection)
    const key = keyOf(object)
    const previous = target.objects.get(key)
    const stamped = this.#stamp(object)
    target.objects.set(key, stamped)
    const type = previous === undefined ? 'ADDED' : 'MODIFIED'
    this.#record(target, { type, version: this.#version, object: stamped, previous })
    return stamped
  }

  remove(collection: string, object: KubeObject): KubeObject | undefined {
    const target = this.#open(collection)
    const previous = target.objects.get(keyOf(object))
    if (previous === undefined) return undefined
    const last = this.#stamp(previous)
    target.objects.delete(keyOf(object))
    this.#record(target, { type: 'DELETED', version: this.#version, object: last, previous })
    return last
  }

  /** What happened after a version; undefined when part of that is compacted. */
  since(collection: string, version: number): readonly StoreEvent[] | undefined {
    const found = this.#open(collection)
    if (version < found.compactedAt) return undefined
    const first = found.history.findIndex((event) => event.version > version)
    return first < 0 ? [] : found.history.slice(first)
  }

  /**
   * Calls back for every later change, in order, until the returned function is called. A
   * listener must not write to the store before it has returned, or others see the order wrong.
   */
  subscribe(collection: string, listener: StoreListener): () => void {
    const target = this.#open(collection)
    target.listeners.add(listener)
    return () => target.listeners.delete(listener)
  }

  /** Forgets all history, so that resuming from any version before now is answered with 410. */
  compact(): void {
    for (const collection of this.#collections.values()) {
      collection.history = []
      collection.compactedAt = this.#version
    }
  }

  /**
   * Continues under an unrelated, higher sequence of versions, as after restoring a backup: earlier
   * versions are invalid.
   */
  renumber(): void {
    this.#version += 1_000_000
    for (const collection of this.#collections.values()) {
      for (const [key, object] of collection.objects) {
        collection.objects.set(key, this.#stamp(object))
      }
      collection.sorted = undefined
    }
    this.compact()
  }

  #stamp(object: KubeObject): KubeObject {
    this.#version++
    const resourceVersion = String(this.#version)
    return compact({ ...object, metadata: { ...object.metadata, resourceVersion } })
  }

  #open(name: string): Collection {
    const known = this.#collections.get(name)
    if (known) return known
    const empty = { objects: new Map(), listeners: new Set<StoreListener>(), history: [] }
    const collection = { ...empty, compactedAt: this.#firstVersion, sorted: undefined }
    this.#collections.set(name, collection)
    return collection
  }

  #record(target: Collection, event: StoreEvent): void {
    target.sorted = undefined
    target.history.push(event)
    // A quarter is cut at once, because cutting one entry moves the array at every write.
    if (target.history.length > historyLimit * 1.25) {
      const dropped = target.history.splice(0, target.history.length - historyLimit)
      target.compactedAt = dropped.at(-1)?.version ?? target.compactedAt
    }
    for (const listener of target.listeners) listener(event)
  }
}

function sortedByKey(objects: ReadonlyMap<string, KubeObject>): readonly KubeObject[] {
  return Array.from(objects)
    .sort(([left], [right]) => (left < right ? -1 : 1))
    .map(([, object]) => object)
}

/**
 * A copy that needs a third less memory. V8 keeps joined texts as parts, and describes the form of
 * an object made with a spread for that object alone; parsed objects have neither cost.
 */
function compact(object: KubeObject): KubeObject {
  return JSON.parse(JSON.stringify(object)) as KubeObject
}

export function keyOf({ metadata }: KubeObject): string {
  return collectionKey(metadata.namespace, metadata.name)
}

/** The separator sorts before every character of a name, so namespaces stay together. */
export function collectionKey(namespace: string | undefined, name: string): string {
  return namespace === undefined || namespace === '' ? name : `${namespace}\0${name}`
}
