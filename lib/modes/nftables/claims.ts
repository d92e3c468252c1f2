import type { MapChanges, PersistentMap } from '../../state/persistent-map.js'
import type { DnatTarget, Element } from '../../kernel/nftables/model.js'
import { endpointMaps, sizeSet } from './names.js'
import { elementId, type Claim, type RulesetPart } from './part.js'

/**
 * Who wants which place in which set, by {@link elementId}. Two service ports may share an
 * external address and port, all ports of a Service share its ClusterIP: the kernel holds what the
 * smallest owner wants there, see {@link elementsWith}, and it leaves with the last claim.
 */
export type Claims = PersistentMap<readonly Claim[]>

/** The claim the kernel gets. */
export function winnerOf(claims: readonly Claim[] | undefined): Claim | undefined {
  return claims?.[0]
}

/** The claims after some parts changed; work is proportional to those parts. */
export function updateClaims(claims: Claims, changes: MapChanges<RulesetPart>): Claims {
  const fresh = new Map<string, readonly Claim[]>()
  const now = (id: string) => fresh.get(id) ?? claims.get(id) ?? []
  const put = (claim: Claim) => {
    const id = elementId(claim)
    const present = now(id)
    const own = present.find(({ owner }) => owner === claim.owner)
    // An equal claim keeps its reference, so that nobody looks at it again.
    if (own && sameClaim(own, claim)) return
    fresh.set(
      id,
      [...present.filter((other) => other !== own), claim].sort((a, b) =>
        a.owner < b.owner ? -1 : 1,
      ),
    )
  }
  const take = (claim: Claim) => {
    const id = elementId(claim)
    fresh.set(
      id,
      now(id).filter(({ owner }) => owner !== claim.owner),
    )
  }
  for (const [, previous] of changes.removed) previous.elements.forEach(take)
  for (const [, part, previous] of changes.changed) {
    const kept = new Set(part.elements.map(elementId))
    for (const claim of previous.elements) if (!kept.has(elementId(claim))) take(claim)
    part.elements.forEach(put)
  }
  for (const [, part] of changes.added) part.elements.forEach(put)
  return claims.update(
    Array.from(fresh, ([id, list]) => [id, list.length === 0 ? undefined : list] as const),
  )
}

/** Whether the kernel would hold the same for both. */
function sameClaim(a: Claim, b: Claim): boolean {
  const [some, others] = [a.shared?.placed ?? [], b.shared?.placed ?? []]
  return (
    sameElement(a, b) &&
    some.length === others.length &&
    some.every((target, index) => sameTarget(target, others[index]))
  )
}

/** Whether the element itself is the same, whatever endpoints belong to it. */
export function sameElement(a: Claim, b: Claim): boolean {
  return (
    a.comment === b.comment &&
    a.verdict?.to === b.verdict?.to &&
    chainOf(a.verdict) === chainOf(b.verdict)
  )
}

export function sameTarget(a: DnatTarget | undefined, b: DnatTarget | undefined): boolean {
  return a?.ip === b?.ip && a?.port === b?.port
}

/** The elements of a map of endpoints that come with a claim. */
export function endpointElements({ key, shared }: Claim): readonly Element[] {
  const [address, , port] = key
  if (!shared || address === undefined || port === undefined) return []
  const set = endpointMaps[shared.choice.protocol]
  return shared.placed.map((target, index) => ({ set, key: [address, port, index], target }))
}

/** What tells the kernel of how many places to draw, where that are not the fewest. */
export function sizeElement({ key, shared }: Claim): Element | undefined {
  const [address, , port] = key
  const set = shared && sizeSet(shared.choice)
  return set && address !== undefined && port !== undefined
    ? { set, key: [address, port] }
    : undefined
}

/** All that the kernel holds for a claim. */
export function elementsWith(claim: Claim): readonly Element[] {
  const size = sizeElement(claim)
  return [claim, ...(size ? [size] : []), ...endpointElements(claim)]
}

const chainOf = (verdict: Claim['verdict']) =>
  verdict && 'chain' in verdict ? verdict.chain : undefined
