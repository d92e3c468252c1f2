import type { KubeObject } from '../object.js'
import type { Registry } from '../registry.js'
import { collectionOf, type ResourceKind } from '../resources.js'
import { collectionKey, type StoreEvent } from '../store.js'
import { WorkQueue } from './work-queue.js'

/** Something that keeps one part of the cluster as another part says. */
export interface Controller {
  /** Works until the signal, beginning with what is there already. */
  run(signal: AbortSignal): Promise<void>
}

export interface ControllerDeps {
  readonly registry: Registry
  /** A step failed, for the log; the next change tries again. */
  readonly onError: (error: unknown) => void
}

interface Watched {
  readonly kind: ResourceKind
  /** Keys to look at because of a change. */
  readonly keysOf: (event: StoreEvent) => Iterable<string>
}

/** Watches some kinds, and works on the keys their changes lead to, one after the other. */
export async function runController(
  deps: ControllerDeps,
  watched: readonly Watched[],
  reconcile: (key: string) => void,
  signal: AbortSignal,
): Promise<void> {
  if (signal.aborted) return
  const { store } = deps.registry
  const queue = new WorkQueue((key) => {
    try {
      reconcile(key)
    } catch (error) {
      deps.onError(error)
    }
  })
  const unsubscribes = watched.map(({ kind, keysOf }) => {
    const take = (event: StoreEvent) => {
      for (const key of keysOf(event)) queue.add(key)
    }
    for (const object of store.list(collectionOf(kind))) {
      take({ type: 'ADDED', version: store.version, object, previous: undefined })
    }
    return store.subscribe(collectionOf(kind), take)
  })
  await new Promise<void>((resolve) => {
    signal.addEventListener('abort', () => resolve(), { once: true })
  })
  for (const unsubscribe of unsubscribes) unsubscribe()
  queue.stop()
}

export function keyOf(object: KubeObject): string {
  return collectionKey(object.metadata.namespace, object.metadata.name)
}

/** The kinds a controller works with, by a name each; undefined when this server lacks one. */
export function kindsOf<Name extends string>(
  { resources }: Registry,
  wanted: Readonly<Record<Name, readonly [apiVersion: string, kind: string]>>,
): Readonly<Record<Name, ResourceKind>> | undefined {
  const found = new Map<string, ResourceKind>()
  for (const [name, [apiVersion, kind]] of Object.entries<readonly [string, string]>(wanted)) {
    const resource = resources.byKind(apiVersion, kind)
    if (resource === undefined) return undefined
    found.set(name, resource)
  }
  return Object.fromEntries(found) as Record<Name, ResourceKind>
}

/** The key of what changed. */
export function ownKey({ object }: StoreEvent): readonly string[] {
  return [keyOf(object)]
}

/** The reference with which a controller marks what it made. */
export function ownerReference(owner: KubeObject) {
  return {
    apiVersion: owner.apiVersion,
    kind: owner.kind,
    name: owner.metadata.name,
    uid: owner.metadata.uid ?? '',
    controller: true,
    blockOwnerDeletion: true,
  }
}

export function isOwnedBy(object: KubeObject, owner: KubeObject): boolean {
  const owners = object.metadata.ownerReferences ?? []
  return owners.some((each) => each.uid === owner.metadata.uid)
}
