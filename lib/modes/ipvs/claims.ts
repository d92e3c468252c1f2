import type { MapChanges, PersistentMap } from '../../state/persistent-map.js'
import { isSameResource, type Resource, type ServicePart } from './resource.js'

export interface Claim {
  /** `DesiredService.key` */
  readonly owner: string
  readonly resource: Resource
}

/**
 * Who wants what, by resource id, smallest owner first. Ports of one Service share its address,
 * and two Services may name the same external address and port: the kernel gets what the first
 * owner asks for, and the resource leaves with the last claim.
 */
export type Claims = PersistentMap<readonly Claim[]>

export function winnerOf(claims: readonly Claim[] | undefined): Resource | undefined {
  return claims?.[0]?.resource
}

/** The claims after some parts changed; the work is proportional to those parts. */
export function updateClaims(claims: Claims, changes: MapChanges<ServicePart>): Claims {
  const fresh = new Map<string, readonly Claim[]>()
  const present = (id: string) => fresh.get(id) ?? claims.get(id) ?? []
  const take = (id: string, owner: string) => {
    fresh.set(
      id,
      present(id).filter((claim) => claim.owner !== owner),
    )
  }
  const put = (id: string, claim: Claim) => {
    const others = present(id)
    const own = others.find(({ owner }) => owner === claim.owner)
    // What did not change keeps its reference, so that nobody looks at it again.
    if (own && isSameResource(own.resource, claim.resource)) return
    const all = [...others.filter((other) => other !== own), claim]
    fresh.set(id, all.length === 1 ? all : all.sort((a, b) => (a.owner < b.owner ? -1 : 1)))
  }
  const putAll = ({ owner, resources }: ServicePart) => {
    for (const [id, resource] of resources) put(id, { owner, resource })
  }
  for (const [, { owner, resources }] of changes.removed) {
    for (const id of resources.keys()) take(id, owner)
  }
  for (const [, part, { owner, resources }] of changes.changed) {
    for (const id of resources.keys()) if (!part.resources.has(id)) take(id, owner)
    putAll(part)
  }
  for (const [, part] of changes.added) putAll(part)
  return claims.update(
    Array.from(fresh, ([id, list]) => [id, list.length === 0 ? undefined : list] as const),
  )
}
