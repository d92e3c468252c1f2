import type { MapChanges, PersistentMap } from '../state/persistent-map.js'

/** Something in the kernel that a service port asks for, and others may ask for as well. */
export interface Requested {
  /** `DesiredService.key`; empty if the node itself asks. */
  readonly owner: string
}

/**
 * The requests for each thing, by an id of the thing. Several service ports may ask for one thing:
 * the ports of a Service share its ClusterIP, and two Services may name the same external address
 * and port. The request of the smallest owner comes first, and the kernel holds what it says. The
 * thing leaves the kernel when the last request goes.
 */
export type Requests<R extends Requested> = PersistentMap<readonly R[]>

interface RequestReader<P, R extends Requested> {
  /** The requests of one part of a plan, each id once. */
  readonly of: (part: P) => Iterable<readonly [id: string, request: R]>
  /** Whether the kernel would hold the same for both. */
  readonly isSame: (a: R, b: R) => boolean
}

/** The requests after some parts changed; the work is proportional to those parts. */
export function updateRequests<P, R extends Requested>(
  requests: Requests<R>,
  changes: MapChanges<P>,
  { of, isSame }: RequestReader<P, R>,
): Requests<R> {
  const fresh = new Map<string, readonly R[]>()
  const present = (id: string) => fresh.get(id) ?? requests.get(id) ?? []
  const take = (id: string, { owner }: R) => {
    fresh.set(
      id,
      present(id).filter((other) => other.owner !== owner),
    )
  }
  const put = (id: string, request: R) => {
    const all = present(id)
    const own = all.find(({ owner }) => owner === request.owner)
    // An equal request keeps its reference, so that it is not compared again.
    if (own && isSame(own, request)) return
    const others = all.filter((other) => other !== own)
    // Nearly all have one owner. An array made by a spread would need memory for 16 more.
    if (others.length === 0) fresh.set(id, [request])
    else
      fresh.set(
        id,
        [...others, request].sort((a, b) => (a.owner < b.owner ? -1 : 1)),
      )
  }
  for (const [, before] of changes.removed) for (const each of of(before)) take(...each)
  for (const [, part, before] of changes.changed) {
    const now = new Map(of(part))
    for (const [id, request] of of(before)) if (!now.has(id)) take(id, request)
    for (const each of now) put(...each)
  }
  for (const [, part] of changes.added) for (const each of of(part)) put(...each)
  return requests.update(
    Array.from(fresh, ([id, list]) => [id, list.length === 0 ? undefined : list] as const),
  )
}
