import type { MapChanges, PersistentMap } from '../state/persistent-map.js'

/** Something in the kernel that a service port asks for, and others may ask for as well. */
export interface Requested {
  /** `DesiredService.key`; empty if the node itself asks. */
  readonly owner: string
  /** Others decide if they ask for the thing as well, whoever owns them. */
  readonly isLast?: boolean
}

/**
 * The requests for each thing, by an id of the thing. Several service ports may ask for one thing:
 * the ports of a Service share its ClusterIP, and two Services may name the same external address
 * and port. The request of the smallest owner comes first, behind it those with `isLast`, and the
 * kernel holds what the first one says. The thing leaves the kernel when the last request goes.
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
  const next = new NextRequests(requests, isSame)
  for (const [, before] of changes.removed) for (const each of of(before)) next.take(...each)
  for (const [, part, before] of changes.changed) {
    const now = new Map(of(part))
    for (const [id, request] of of(before)) if (!now.has(id)) next.take(id, request)
    for (const each of now) next.put(...each)
  }
  for (const [, part] of changes.added) for (const each of of(part)) next.put(...each)
  return requests.update(next.entries())
}

/** What several owners ask for. */
interface Crowd<R> {
  readonly before: readonly R[]
  /** By owner; undefined: asks no more. */
  readonly changes: Map<string, R | undefined>
}

/** Collects changes of requests. */
class NextRequests<R extends Requested> {
  readonly #before: Requests<R>
  readonly #isSame: (a: R, b: R) => boolean
  /** Nearly all have one owner, and a map for each would need much memory. */
  readonly #single = new Map<string, readonly R[]>()
  /**
   * Thousands may ask for one thing: the ports of a Service for its ClusterIP, Services for one
   * endpoint. So only those that change are looked at and sorted.
   */
  readonly #crowds = new Map<string, Crowd<R>>()

  constructor(before: Requests<R>, isSame: (a: R, b: R) => boolean) {
    this.#before = before
    this.#isSame = isSame
  }

  take(id: string, { owner }: R): void {
    const crowd = this.#crowdOf(id)
    if (crowd) {
      if (requestIn(crowd, owner)) crowd.changes.set(owner, undefined)
    } else if (this.#own(id)?.owner === owner) this.#single.set(id, [])
  }

  put(id: string, request: R): void {
    const crowd = this.#crowdOf(id)
    const one = this.#own(id)
    const own = crowd ? requestIn(crowd, request.owner) : one
    // An equal request keeps its reference, so that it is not compared again.
    if (own?.owner === request.owner && this.#isSame(own, request)) return
    if (crowd) crowd.changes.set(request.owner, request)
    else if (!one || one.owner === request.owner) this.#single.set(id, [request])
    else this.#crowds.set(id, { before: [one], changes: new Map([[request.owner, request]]) })
  }

  *entries(): IterableIterator<[string, readonly R[] | undefined]> {
    for (const [id, list] of this.#single) yield [id, list.length === 0 ? undefined : list]
    // These come last, because a crowd may have begun with a single one.
    for (const [id, crowd] of this.#crowds) {
      if (crowd.changes.size === 0) continue
      const list = listOf(crowd)
      yield [id, list.length === 0 ? undefined : list]
    }
  }

  /** The only request; undefined if there is none. */
  #own(id: string): R | undefined {
    return (this.#single.get(id) ?? this.#before.get(id))?.[0]
  }

  #crowdOf(id: string): Crowd<R> | undefined {
    const known = this.#crowds.get(id)
    if (known) return known
    const before = this.#single.get(id) ?? this.#before.get(id) ?? []
    if (before.length < 2) return undefined
    const crowd = { before, changes: new Map<string, R | undefined>() }
    this.#crowds.set(id, crowd)
    return crowd
  }
}

function requestIn<R extends Requested>(
  { before, changes }: Crowd<R>,
  owner: string,
): R | undefined {
  return changes.has(owner) ? changes.get(owner) : before[indexOf(owner, before)]
}

/** The requests with their changes, in order. */
function listOf<R extends Requested>({ before, changes }: Crowd<R>): readonly R[] {
  const puts = [...changes.values()].filter((request) => request !== undefined)
  const edits: { readonly at: number; readonly put?: R }[] = [
    ...puts
      .sort((a, b) => (isBefore(a, b) ? -1 : 1))
      .map((put) => ({ at: placeOf(put, before), put })),
    ...Array.from(changes.keys(), (owner) => ({ at: indexOf(owner, before) })),
  ]
  const list: R[] = []
  let rest = 0
  const keepUntil = (end: number) => {
    for (; rest < end; rest++) list.push(before[rest] as R)
  }
  for (const { at, put } of edits.sort((a, b) => a.at - b.at)) {
    keepUntil(at)
    if (put) list.push(put)
    else if (at >= 0) rest++
  }
  keepUntil(before.length)
  return list
}

function isBefore(a: Requested, b: Requested): boolean {
  const isLast = a.isLast === true
  return isLast === (b.isLast === true) ? a.owner < b.owner : !isLast
}

/** Where the request of an owner is in the list; -1: nowhere. */
function indexOf(owner: string, list: readonly Requested[]): number {
  const places = [placeOf({ owner }, list), placeOf({ owner, isLast: true }, list)]
  return places.find((place) => list[place]?.owner === owner) ?? -1
}

/** Where a request is in the list, or would be. */
function placeOf(request: Requested, list: readonly Requested[]): number {
  let [from, to] = [0, list.length]
  while (from < to) {
    const middle = (from + to) >> 1
    const other = list[middle]
    if (other && isBefore(other, request)) from = middle + 1
    else to = middle
  }
  return from
}
