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
  const old = new Set(before.map(({ key }) => key))
  const added = endpoints.filter(({ key }) => !old.delete(key))
  // Those that are left in it were not met again.
  return { removed: [...old], added, servingKeys, affinityMs }
}
