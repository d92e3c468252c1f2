import type { Chain, DnatTarget, Element, NftSet } from '../../kernel/nftables/model.js'
import type { Choice } from './names.js'

/** The share of one service port, or of the node itself, in the ruleset. */
export interface RulesetPart {
  /** No other part has chains or sets of these names. */
  readonly chains: readonly Chain[]
  readonly sets: readonly NftSet[]
  /** Other parts may claim the same keys, see claims.ts. */
  readonly elements: readonly Claim[]
  /** Instead of chains of its own: those it shares with all that have about as many endpoints. */
  readonly choice?: Choice
}

/** Where the endpoints of a service port stand, and of how many places one is drawn. */
export interface SharedChoice {
  readonly choice: Choice
  /** Every endpoint as often as the others, so that chance is even; places left over stay empty. */
  readonly placed: readonly DnatTarget[]
}

/** An element that a service port wants; the smallest owner gets it when several do. */
export interface Claim extends Element {
  /** `DesiredService.key`; empty for the node's own. */
  readonly owner: string
  /** In elements of their own, for the same address and port: whose place it is sends there. */
  readonly shared?: SharedChoice
}

export function elementOf(
  owner: string,
  set: NftSet,
  key: readonly (string | number)[],
  rest: Pick<Claim, 'verdict' | 'comment' | 'shared'> = {},
): Claim {
  return { owner, set, key, ...rest }
}

/** One text per place in a set. */
export function elementId({ set, key }: Element): string {
  return `${set.name} ${key.join(' ')}`
}
