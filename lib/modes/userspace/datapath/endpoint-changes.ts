import type { EndpointChoice, Target } from './datapath.js'

/**
 * What leads from one choice of endpoints to the next. It crosses to the worker instead of the
 * whole choice, so that its work, too, is as long as the change and not as the list.
 */
export interface EndpointChanges extends Omit<EndpointChoice, 'endpoints'> {
  /** Keys of endpoints. */
  readonly removed: readonly string[]
  readonly added: readonly Target[]
}

export function endpointChanges(
  before: readonly Target[],
  { endpoints, servingKeys, affinityMs }: EndpointChoice,
): EndpointChanges {
  // Most changes are in one place of a list that is else the same.
  const isSame = (old: Target | undefined, now: Target | undefined) => old?.key === now?.key
  const shorter = Math.min(before.length, endpoints.length)
  let head = 0
  while (head < shorter && isSame(before[head], endpoints[head])) head++
  let tail = 0
  while (tail < shorter - head && isSame(before.at(-1 - tail), endpoints.at(-1 - tail))) tail++
  const removed = new Set(before.slice(head, before.length - tail).map(({ key }) => key))
  // Whoever is met again was not removed.
  const added = endpoints
    .slice(head, endpoints.length - tail)
    .filter(({ key }) => !removed.delete(key))
  return { removed: [...removed], added, servingKeys, affinityMs }
}
