import type { Chain, DnatTarget, Element, NftSet } from '../../kernel/nftables/model.js'
import type { Requested } from '../requests.js'
import type { Choice } from './names.js'

/** The part of the ruleset that belongs to one service port, or to the node itself. */
export interface RulesetPart {
  /** No other part has chains or sets of these names. */
  readonly chains: readonly Chain[]
  readonly sets: readonly NftSet[]
  /** Other parts may ask for the same keys, see requests.ts. */
  readonly elements: readonly ElementRequest[]
  /** The content of its maps from the hash of a client to an endpoint. */
  readonly tables?: readonly PlaceTable[]
  /** The chains that it uses instead of its own. Services of about the same size share them. */
  readonly choice?: Choice
}

/** A map from every number below `places.length` to an endpoint. */
export interface PlaceTable {
  readonly set: NftSet
  readonly endpoints: readonly DnatTarget[]
  /** Indexes of endpoints. */
  readonly places: Uint16Array
}

/** The places of a service port's endpoints, and the shared chains that draw one of the places. */
export interface SharedChoice {
  readonly choice: Choice
  /** The endpoint at each place. All have equally many places; places that are left stay empty. */
  readonly placed: readonly DnatTarget[]
}

/** An element that a service port asks for. */
export interface ElementRequest extends Element, Requested {
  /** The endpoints. They become further elements for the same address and port. */
  readonly shared?: SharedChoice
}

/** A text that is different for each key of each set. */
export function elementId({ set, key }: Element): string {
  return `${set.name} ${key.join(' ')}`
}
