import type { Choice } from './names.js'
import type { Chain, DnatTarget, Element, NftSet } from '../../kernel/nftables/model.js'

/** The share of one service port, or of the node itself, in the ruleset. */
export interface RulesetPart {
  /** No other part has chains or sets of these names. */
  readonly chains: readonly Chain[]
  readonly sets: readonly NftSet[]
  /** Other parts may claim the same keys, see claims.ts. */
  readonly elements: readonly Claim[]
  /** Instead of chains of its own: those it shares with all parts that have about as many endpoints. */
  readonly choice?: Choice
}

/** An element that a service port wants; the smallest owner gets it when several do. */
export interface Claim extends Element {
  /** `DesiredService.key`; empty for the node's own. */
  readonly owner: string
  /** Numbered, in `endpointMaps`, for the same address and port: whose place it is sends there. */
  readonly endpoints?: readonly DnatTarget[]
}

export function elementOf(
  owner: string,
  set: NftSet,
  key: readonly (string | number)[],
  rest: Pick<Claim, 'verdict' | 'comment' | 'endpoints'> = {},
): Claim {
  return { owner, set, key, ...rest }
}

/** One text per place in a set. */
export function elementId({ set, key }: Element): string {
  return `${set.name} ${key.join(' ')}`
}
