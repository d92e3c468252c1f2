import type { Chain, Element, NftSet, Rule, TableRef } from './model.js'

export interface ClientReader {
  /** The content of sets of addresses with a timeout, by name. A missing set has none. */
  remembered(
    table: TableRef,
    sets: readonly NftSet[],
  ): Promise<ReadonlyMap<string, readonly Remembered[]>>
}

/** Reads the kernel's tables for a comparison, in the background and in parts. */
export interface RulesetReader extends ClientReader {
  /**
   * What the table holds, if `wanted` can be added to it: there is such a table, it is switched on,
   * what has the same name has the same form, and no chain has the policy to drop.
   */
  contents(table: TableRef, wanted: ChainsAndSets): Promise<ChainsAndSets | undefined>
  /** The chains of the table by name. */
  chains(table: TableRef): Promise<ReadonlyMap<string, ListedChain>>
  /** The sets of the table by name. */
  sets(table: TableRef): Promise<ReadonlyMap<string, ListedSet>>
  /** Whether the table is switched off: the kernel runs none of its chains. */
  isDormant(table: TableRef): Promise<boolean>
  /**
   * The elements of one set; throws a KernelError of kind `not-found` when there is no such set.
   */
  elements(table: TableRef, set: NftSet): Promise<ListedElements>
}

/** Chains and sets; those that were read from the kernel have their names and no content. */
export interface ChainsAndSets {
  readonly chains: readonly Chain[]
  readonly sets: readonly NftSet[]
}

export interface ListedChain {
  /** What happens to packets that the rules do not decide. Only a chain with a hook has a policy. */
  readonly policy: 'accept' | 'drop' | undefined
  /** Whether the kernel's chain has the type, hook and priority of this chain. */
  hasFormOf(chain: Chain): boolean
  readonly rules: readonly ListedRule[]
}

export interface ListedSet {
  /** Whether the kernel's set has the types, flags, timeout and size of this set. */
  hasFormOf(set: NftSet): boolean
}

export interface ListedRule {
  /** Whether the kernel's rule is this rule. */
  isLike(rule: Rule): boolean
}

export interface ListedElements {
  readonly size: number
  /** Whether the element is there with its verdict. */
  has(element: Element): boolean
  /** What is there under the key of the element; undefined if nothing is. */
  valueAt(element: Element): string | undefined
  /** The keys of all elements that are not known, as `nft` prints them. */
  others(known: Iterable<Element>): readonly string[]
}

export interface Remembered {
  readonly address: string
  /** The time that the entry has left. */
  readonly expiresMs: number
}
