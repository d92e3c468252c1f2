import type { KubeObject } from '../object.js'
import { collectionOf, type ResourceKind } from '../resources.js'
import type { StoreEvent } from '../store.js'
import { keyOf, runController, type Controller, type ControllerDeps } from './controller.js'

/** Removes what belonged to an object that is gone, as `kubectl delete deployment` expects. */
export function garbageCollector(deps: ControllerDeps): Controller {
  const { registry } = deps
  const kinds = registry.resources.all.filter((kind) => kind.namespaced && !kind.storedForm)
  /** By the uid of the owner: the dependents' kinds and keys. */
  const dependents = new Map<string, Map<string, ResourceKind>>()

  const index = (kind: ResourceKind, object: KubeObject, isThere: boolean) => {
    for (const { uid } of object.metadata.ownerReferences ?? []) {
      const known = dependents.get(uid) ?? new Map<string, ResourceKind>()
      if (isThere) known.set(`${collectionOf(kind)} ${keyOf(object)}`, kind)
      else known.delete(`${collectionOf(kind)} ${keyOf(object)}`)
      if (known.size > 0) dependents.set(uid, known)
      else dependents.delete(uid)
    }
  }

  const keysOf = (kind: ResourceKind, { type, object, previous }: StoreEvent) => {
    if (previous) index(kind, previous, false)
    if (type !== 'DELETED') index(kind, object, true)
    const { uid = '' } = object.metadata
    return type === 'DELETED' && dependents.has(uid) ? [uid] : []
  }

  const collect = (uid: string) => {
    for (const [id, kind] of dependents.get(uid) ?? []) {
      const object = registry.store.get(collectionOf(kind), id.slice(id.indexOf(' ') + 1))
      if (object) registry.delete(kind, object.metadata.namespace, object.metadata.name)
    }
  }

  const watched = kinds.map((kind) => ({
    kind,
    keysOf: (event: StoreEvent) => keysOf(kind, event),
  }))
  return { run: (signal) => runController(deps, watched, collect, signal) }
}
