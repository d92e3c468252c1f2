import type { Chain, DnatTarget, Element, NftSet } from '../../kernel/nftables/model.js'
import type { Requested } from '../requests.js'
import type { Choice } from './names.js'

/** The share of one service port, or of the node itself, in the ruleset. */
export interface RulesetPart {
  /** No other part has chains or sets of these names. */
  readonly chains: readonly Chain[]
  readonly sets: readonly NftSet[]
  /** Other parts may ask for the same keys, see requests.ts. */
  readonly elements: readonly ElementRequest[]
  /** What is in those of its sets that lead from the hash of a client to an endpoint. */
  readonly tables?: readonly PlaceTable[]
  /** The chains it shares with all that have about as many endpoints, instead of its own. */
  readonly choice?: Choice
}

/** A map from every number below `places.length` to an endpoint. */
export interface PlaceTable {
  readonly set: NftSet
  readonly endpoints: readonly DnatTarget[]
  /** Indexes of endpoints. */
  readonly places: Uint16Array
}

/** The places of the endpoints of a service port, and of how many one is drawn. */
export interface SharedChoice {
  readonly choice: Choice
  /** Every endpoint as often as the others, so that chance is even; places left over stay empty. */
  readonly placed: readonly DnatTarget[]
}

/** An element that a service port asks for. */
export interface ElementRequest extends Element, Requested {
  /** Its endpoints, as further elements for the same address and port. */
  readonly shared?: SharedChoice
}

export function elementOf(
  owner: string,
  set: NftSet,
  key: readonly (string | number)[],
  rest: Pick<ElementRequest, 'verdict' | 'comment' | 'shared'> = {},
): ElementRequest {
  return { owner, set, key, ...rest }
}

/** One text for each place in a set. */
export function elementId({ set, key }: Element): string {
  return `${set.name} ${key.join(' ')}`
}
