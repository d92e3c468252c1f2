import type {
  Chain,
  Command,
  Element,
  NftFamily,
  NftSet,
  Rule,
} from '../../kernel/nftables/model.js'
import { ruleText } from '../../kernel/nftables/text-statements.js'
import type { ElementRequest, PlaceTable, RulesetPart } from './part.js'
import type { NftablesPlan } from './plan.js'
import { endpointElements, sameElement, sameTarget, sizeElement, targetAt } from './elements.js'

/** The commands that lead from one plan to the next. */
interface RulesetChanges {
  readonly commands: readonly Command[]
  /**
   * Chains and sets that are unused afterwards. Kernels before 6.2 refuse to delete a chain in the
   * transaction that removes its last reference, so they are deleted a moment later (NF20).
   */
  readonly retired: Retired
  /** Sets of session affinity that are deleted and added with another timeout, without clients. */
  readonly replaced: readonly NftSet[]
}

export interface Retired {
  readonly chains: readonly Chain[]
  readonly sets: readonly NftSet[]
}

/** Every command of a plan for an empty table. */
export function creation(plan: NftablesPlan): readonly Command[] {
  return between(plan, undefined).commands
}

/** The difference of two plans, in an order in which every command finds what it refers to. */
export function between(plan: NftablesPlan, previous: NftablesPlan | undefined): RulesetChanges {
  const order = new Order(plan.table.family)
  const parts = plan.parts.since(previous?.parts)
  for (const [, part] of parts.added) order.part(part, emptyPart)
  for (const [, part, before] of parts.changed) order.part(part, before)
  for (const [, before] of parts.removed) order.part(emptyPart, before)
  const elements = plan.requests.since(previous?.requests)
  for (const [, [now]] of elements.added) order.element(now, undefined)
  for (const [, [now], [before]] of elements.changed) order.element(now, before)
  for (const [, [before]] of elements.removed) order.element(undefined, before)
  return { commands: order.commands(), retired: order.retired, replaced: order.replaced }
}

const emptyPart: RulesetPart = { chains: [], sets: [], elements: [] }

/** Collects commands by kind; `commands` puts the kinds in their order. */
class Order {
  readonly #family: NftFamily
  readonly #addSets: Command[] = []
  readonly #addChains: Command[] = []
  readonly #deleteElements: Command[] = []
  readonly #flushChains: Command[] = []
  readonly #replaceSets: Command[] = []
  readonly #addRules: Command[] = []
  readonly #addElements: Command[] = []
  readonly retired: { readonly chains: Chain[]; readonly sets: NftSet[] } = { chains: [], sets: [] }
  readonly replaced: NftSet[] = []

  constructor(family: NftFamily) {
    this.#family = family
  }

  part(part: RulesetPart, before: RulesetPart): void {
    const sets = byName(before.sets)
    const replacedBefore = this.replaced.length
    for (const set of part.sets) {
      const old = sets.get(set.name)
      sets.delete(set.name)
      if (!old) this.#addSets.push({ do: 'add-set', set })
      else if (old.timeoutSeconds !== set.timeoutSeconds) {
        this.#replaceSets.push({ do: 'delete-set', set: old }, { do: 'add-set', set })
        this.replaced.push(set)
      }
    }
    this.retired.sets.push(...sets.values())

    this.#tables(part.tables ?? [], before.tables ?? [])

    const chains = byName(before.chains)
    for (const chain of part.chains) {
      const old = chains.get(chain.name)
      chains.delete(chain.name)
      if (!old) this.#addChains.push({ do: 'add-chain', chain })
      // A set in use cannot be replaced, so the rules of the part are removed and written again.
      else if (this.replaced.length > replacedBefore || !this.#sameRules(chain.rules, old.rules)) {
        this.#flushChains.push({ do: 'flush-chain', chain })
      } else continue
      for (const rule of chain.rules) {
        this.#addRules.push({ do: 'add-rule', chain: chain.name, rule })
      }
    }
    for (const chain of chains.values()) {
      this.#flushChains.push({ do: 'flush-chain', chain })
      this.retired.chains.push(chain)
    }
  }

  /** Writes the places that lead elsewhere now. They are few if one endpoint comes or goes. */
  #tables(tables: readonly PlaceTable[], before: readonly PlaceTable[]): void {
    const old = new Map(before.map((table) => [table.set.name, table]))
    for (const table of tables) {
      this.#places(table.set, table, old.get(table.set.name))
      old.delete(table.set.name)
    }
    for (const table of old.values()) this.#places(table.set, undefined, table)
  }

  #places(set: NftSet, now: PlaceTable | undefined, before: PlaceTable | undefined): void {
    const { length } = (now ?? before)?.places ?? []
    for (let place = 0; place < length; place++) {
      const [target, old] = [now, before].map((table) => table && targetAt(table, place))
      if (sameTarget(target, old)) continue
      const element = { set, key: [place] }
      this.#replace(target && { ...element, target }, old && element)
    }
  }

  element(now: ElementRequest | undefined, before: ElementRequest | undefined): void {
    this.#endpoints(now, before)
    const [size, oldSize] = [now && sizeElement(now), before && sizeElement(before)]
    if (size?.set.name !== oldSize?.set.name) this.#replace(size, oldSize)
    if (!now || !before || !sameElement(now, before)) this.#replace(now, before)
  }

  #replace(now: Element | undefined, before: Element | undefined): void {
    if (before) this.#deleteElements.push({ do: 'delete-element', element: before })
    if (now) this.#addElements.push({ do: 'add-element', element: now })
  }

  /** Writes the elements whose number means another endpoint now. No rule changes, see README. */
  #endpoints(now: ElementRequest | undefined, before: ElementRequest | undefined): void {
    const after = now ? endpointElements(now) : []
    const old = before ? endpointElements(before) : []
    for (let index = 0; index < Math.max(after.length, old.length); index++) {
      const [element, previous] = [after[index], old[index]]
      if (!sameTarget(element?.target, previous?.target)) this.#replace(element, previous)
    }
  }

  commands(): readonly Command[] {
    return [
      ...this.#addSets,
      ...this.#addChains,
      ...bySet(this.#deleteElements),
      ...this.#flushChains,
      ...this.#replaceSets,
      ...this.#addRules,
      ...bySet(this.#addElements),
    ]
  }

  #sameRules(a: readonly Rule[], b: readonly Rule[]): boolean {
    return (
      a === b ||
      (a.length === b.length &&
        a.every((rule, index) => {
          const other = b[index]
          return (
            other !== undefined && ruleText(this.#family, rule) === ruleText(this.#family, other)
          )
        }))
    )
  }
}

/** Sorts elements by set, so that the text writer can put many into one command. */
function bySet(commands: readonly Command[]): readonly Command[] {
  const name = (command: Command) => ('element' in command ? command.element.set.name : '')
  return [...commands].sort((a, b) => (name(a) < name(b) ? -1 : name(a) > name(b) ? 1 : 0))
}

const byName = <T extends { readonly name: string }>(list: readonly T[]) =>
  new Map(list.map((one) => [one.name, one]))
