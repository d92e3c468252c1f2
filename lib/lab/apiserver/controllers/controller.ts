import { aborted } from '../../../async.js'
import { objectAt } from '../json.js'
import type { KubeObject } from '../object.js'
import { clientsOf, type Clients, type KindClient } from '../kind-client.js'
import type { Registry } from '../registry.js'
import { matchesSelector } from '../selectors.js'
import { keyOf, type StoreEvent } from '../store.js'

/** Changes one part of the cluster to match another part. */
export interface Controller {
  /** Works until the signal, first on the objects that exist already. */
  run(signal: AbortSignal): Promise<void>
}

export interface ControllerDeps {
  readonly registry: Registry
  /** A step failed, for the log; the next change tries again. */
  readonly onError: (error: unknown) => void
}

interface Work {
  /** For each kind to watch: the keys to look at because of a change. */
  readonly watched: readonly (readonly [KindClient, (event: StoreEvent) => Iterable<string>])[]
  readonly reconcile: (key: string) => void
}

export function controller(deps: ControllerDeps, workOn: (clients: Clients) => Work): Controller {
  return { run: (signal) => watch(deps, workOn(clientsOf(deps.registry)), signal) }
}

/**
 * Watches the kinds, and works on the keys that their changes lead to, each once and one after the
 * other. The work starts after the store has told every listener of the change, so a controller
 * never writes while the store still notifies others.
 */
export async function watch(
  { onError }: ControllerDeps,
  { watched, reconcile }: Work,
  signal: AbortSignal,
): Promise<void> {
  if (signal.aborted) return
  const waiting = new Set<string>()
  let scheduled: ReturnType<typeof setTimeout> | undefined
  const work = () => {
    scheduled = undefined
    const keys = [...waiting]
    waiting.clear()
    for (const key of keys) {
      try {
        reconcile(key)
      } catch (error) {
        onError(error)
      }
    }
  }
  const unsubscribes = watched.map(([client, keysOf]) => {
    const take = (event: StoreEvent) => {
      for (const key of keysOf(event)) waiting.add(key)
      if (waiting.size > 0) scheduled ??= setTimeout(work, 0)
    }
    for (const object of client.list()) {
      take({ type: 'ADDED', version: client.version, object, previous: undefined })
    }
    return client.subscribe(take)
  })
  await aborted(signal)
  for (const unsubscribe of unsubscribes) unsubscribe()
  clearTimeout(scheduled)
}

export function ownKey({ object }: StoreEvent): readonly string[] {
  return [keyOf(object)]
}

/** The reference that a controller sets on the objects that it makes. */
export function ownerReference({ apiVersion, kind, metadata: { name, uid = '' } }: KubeObject) {
  return { apiVersion, kind, name, uid, controller: true, blockOwnerDeletion: true }
}

/** Makes the owner own what its selector finds and nobody owns, and let go what it finds no more. */
export function claim(client: KindClient, owner: KubeObject): void {
  const selector = objectAt(owner, 'spec', 'selector')
  // Without labels a selector finds everything.
  if (Object.keys(objectAt(selector, 'matchLabels')).length === 0) return
  for (const object of client.list()) {
    const { namespace, ownerReferences: owners = [], deletionTimestamp } = object.metadata
    if (namespace !== owner.metadata.namespace || deletionTimestamp !== undefined) continue
    const isOwn = isOwnedBy(object, owner)
    const isFound = (isOwn || owners.length === 0) && matchesSelector(object, selector)
    if (isFound === isOwn) continue
    const others = owners.filter(({ uid }) => uid !== owner.metadata.uid)
    const ownerReferences = isFound ? [ownerReference(owner)] : others
    client.update({ ...object, metadata: { ...object.metadata, ownerReferences } })
  }
}

export function isOwnedBy(object: KubeObject, owner: KubeObject): boolean {
  const owners = object.metadata.ownerReferences ?? []
  return owners.some((each) => each.uid === owner.metadata.uid)
}
