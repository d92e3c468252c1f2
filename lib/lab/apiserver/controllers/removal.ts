import { KindClient } from '../kind-client.js'
import type { KubeObject, OwnerReference } from '../object.js'
import type { Registry } from '../registry.js'
import { keyOf, type StoreEvent } from '../store.js'
import { controller, watch, type Controller, type ControllerDeps } from './controller.js'

/** Removes the dependents of a deleted object, as `kubectl delete deployment` expects. */
export function garbageCollector(deps: ControllerDeps): Controller {
  const { registry } = deps
  const clients = registry.resources.all
    .filter((kind) => kind.namespaced && !kind.storedForm)
    .map((kind) => new KindClient(registry, kind))
  /** By the uid of the owner: the dependents' kinds and keys. */
  const dependents = new Map<string, Map<KindClient, Set<string>>>()

  const index = (client: KindClient, object: KubeObject, isThere: boolean) => {
    for (const { uid } of object.metadata.ownerReferences ?? []) {
      const ofOwner = dependents.get(uid) ?? new Map<KindClient, Set<string>>()
      const keys = ofOwner.get(client) ?? new Set()
      if (isThere) keys.add(keyOf(object))
      else keys.delete(keyOf(object))
      if (keys.size > 0) ofOwner.set(client, keys)
      else ofOwner.delete(client)
      if (ofOwner.size > 0) dependents.set(uid, ofOwner)
      else dependents.delete(uid)
    }
  }
  const follow = (client: KindClient, { type, object, previous }: StoreEvent) => {
    if (previous) index(client, previous, false)
    if (type !== 'DELETED') index(client, object, true)
    const { uid = '' } = object.metadata
    return type === 'DELETED' && dependents.has(uid) ? [uid] : []
  }
  const reconcile = (uid: string) => {
    for (const [client, keys] of [...(dependents.get(uid) ?? [])]) {
      for (const object of [...keys].flatMap((key) => client.get(key) ?? [])) {
        const { metadata } = object
        const owners = metadata.ownerReferences ?? []
        const ownerReferences = owners.filter((each) => hasOwner(registry, object, each))
        // Another owner keeps it.
        if (ownerReferences.length > 0) {
          client.update({ ...object, metadata: { ...metadata, ownerReferences } })
        } else client.delete(object)
      }
    }
  }
  const watched = clients.map(
    (client) => [client, (event: StoreEvent) => follow(client, event)] as const,
  )
  return { run: (signal) => watch(deps, { watched, reconcile }, signal) }
}

function hasOwner(registry: Registry, dependent: KubeObject, owner: OwnerReference): boolean {
  const kind = registry.resources.byKind(owner.apiVersion, owner.kind)
  if (kind === undefined) return false
  const namespace = kind.namespaced ? dependent.metadata.namespace : undefined
  return registry.find(kind, namespace, owner.name)?.metadata.uid === owner.uid
}

/** A real server deletes Events after an hour. This one deletes the oldest beyond this number. */
const maximumEvents = 1000

export function eventExpiry(deps: ControllerDeps): Controller {
  return controller(deps, ({ events }) => {
    /** Keys in the order of arrival. */
    const keys = new Set<string>()
    const follow = ({ type, object }: StoreEvent) => {
      if (type === 'DELETED') keys.delete(keyOf(object))
      else keys.add(keyOf(object))
      return keys.size > maximumEvents ? ['expire'] : []
    }
    const reconcile = () => {
      for (const key of [...keys].slice(0, keys.size - maximumEvents)) {
        const event = events.get(key)
        if (event) events.delete(event)
      }
    }
    return { watched: [[events, follow]], reconcile }
  })
}
