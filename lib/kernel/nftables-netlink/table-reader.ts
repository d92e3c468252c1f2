import { KernelError } from '../../errors.js'
import { addressText } from '../addresses.js'
import type { NetlinkChannel } from '../netlink/channel.js'
import { attributesOf, readString } from '../netlink/message-reader.js'
import { MessageWriter } from '../netlink/message-writer.js'
import { flags } from '../netlink/protocol.js'
import type { Chain, Element, NftFamily, NftSet, TableRef } from '../nftables/model.js'
import type {
  ChainsAndSets,
  ListedElements,
  ListedChain,
  ListedRule,
  ListedSet,
  Remembered,
  RulesetReader,
} from '../nftables/reader.js'
import {
  chainAttributes,
  elementListAttributes,
  families,
  genericBytes,
  messages,
  policies,
  ruleAttributes,
  setAttributes,
  setFlags,
  tableAttributes,
  tableFlags,
  verdictCodes,
} from './protocol.js'
import {
  chainForm,
  isSameChain,
  isSameSet,
  setForm,
  zero,
  type Attributes,
} from './object-match.js'
import { anonymousSetsIn, isSameRule } from './rule-match.js'
import { elementsIn, keyBytes, keyText, targetBytes, type ListedElement } from './sets.js'
import { addressLength, ipFamilyOf } from './values.js'

/** Reads tables by netlink dumps, which do not block the event loop. */
export class TableReader implements RulesetReader {
  readonly #channel: NetlinkChannel

  constructor(channel: NetlinkChannel) {
    this.#channel = channel
  }

  async contents(table: TableRef, wanted: ChainsAndSets): Promise<ChainsAndSets | undefined> {
    const chains = await this.#objects(table, chainKind)
    if (chains.size === 0 || (await this.isDormant(table))) return undefined
    const sets = await this.#objects(table, setKind)
    const canStay =
      // A chain whose policy is to drop would drop everything as soon as it is emptied.
      [...chains.values()].every((chain) => policyOf(chain) !== 'drop') &&
      wanted.chains.every((chain) => isSameChain(chain, chains.get(chain.name))) &&
      wanted.sets.every((set) => isSameSet(table.family, set, sets.get(set.name)))
    if (!canStay) return undefined
    return {
      chains: Array.from(chains.keys(), (name) => ({ name, rules: [] })),
      sets: [...sets].flatMap(([name, attributes]) => {
        const bits = attributes.get(setAttributes.flags)?.readUInt32BE() ?? 0
        // It goes with its rule.
        if ((bits & setFlags.anonymous) !== 0) return []
        return [{ name, key: [], holds: (bits & setFlags.map) === 0 ? 'keys' : 'targets' } as const]
      }),
    }
  }

  async chains(table: TableRef): Promise<ReadonlyMap<string, ListedChain>> {
    const chains = new Map<string, ListedChain & { readonly rules: ListedRule[] }>()
    for (const [name, attributes] of await this.#objects(table, chainKind)) {
      const hasFormOf = (chain: Chain) => isSameChain(chain, attributes, chainForm)
      chains.set(name, { policy: policyOf(attributes), hasFormOf, rules: [] })
    }
    const request = this.#request(table.family, messages.getRule, (message) =>
      message.string(ruleAttributes.table, table.name),
    )
    const rules = await this.#channel.dump(request, {
      action: `list rules of nftables table ${table.name}`,
      parse: ({ payload }) => {
        const attributes = attributesOf(payload, genericBytes)
        const chain = attributes.get(ruleAttributes.chain)
        const expressions = attributes.get(ruleAttributes.expressions)
        if (!chain || !isOf(table, attributes.get(ruleAttributes.table))) return undefined
        return { chain: readString(chain), expressions: Buffer.from(expressions ?? []) }
      },
    })
    for (const { chain, expressions } of rules) {
      const sets = new Map<string, readonly ListedElement[]>()
      for (const name of anonymousSetsIn(expressions)) {
        sets.set(name, await this.#itemsIfThere(table, { name }))
      }
      chains.get(chain)?.rules.push({
        isLike: (rule) => isSameRule(table.family, rule, { expressions, sets }),
      })
    }
    return chains
  }

  async sets(table: TableRef): Promise<ReadonlyMap<string, ListedSet>> {
    const sets = new Map<string, ListedSet>()
    for (const [name, attributes] of await this.#objects(table, setKind)) {
      const hasFormOf = (set: NftSet) => isSameSet(table.family, set, attributes, setForm)
      sets.set(name, { hasFormOf })
    }
    return sets
  }

  /** The chains of all tables of the family, as `table chain`. */
  async chainNames(family: NftFamily): Promise<ReadonlySet<string>> {
    const request = this.#request(family, messages.getChain, () => undefined)
    const names = await this.#channel.dump(request, {
      action: `list chains of nftables family ${family}`,
      parse: ({ payload }) => {
        const attributes = attributesOf(payload, genericBytes)
        const text = (attribute: number) => readString(attributes.get(attribute) ?? zero)
        return `${text(chainAttributes.table)} ${text(chainAttributes.name)}`
      },
    })
    return new Set(names)
  }

  async exists(table: TableRef): Promise<boolean> {
    return (await this.#objects(table, tableKind)).has(table.name)
  }

  async isDormant(table: TableRef): Promise<boolean> {
    const attributes = (await this.#objects(table, tableKind)).get(table.name)
    return (
      ((attributes?.get(tableAttributes.flags)?.readUInt32BE() ?? 0) & tableFlags.dormant) !== 0
    )
  }

  async elements(table: TableRef, set: NftSet): Promise<ListedElements> {
    return listed(table.family, set, await this.#items(table, set))
  }

  async remembered(
    table: TableRef,
    sets: readonly NftSet[],
  ): Promise<ReadonlyMap<string, readonly Remembered[]>> {
    const found = new Map<string, readonly Remembered[]>()
    // At the first start there is no table, so the sets need not be read one by one.
    if ((await this.#objects(table, chainKind)).size === 0) return found
    for (const set of sets) {
      found.set(set.name, rememberedOf(table.family, await this.#itemsIfThere(table, set)))
    }
    return found
  }

  /** Nothing for a set that is not there. An anonymous one goes with its rule at any time. */
  async #itemsIfThere(
    table: TableRef,
    set: Pick<NftSet, 'name'>,
  ): Promise<readonly ListedElement[]> {
    try {
      return await this.#items(table, set)
    } catch (error) {
      if (error instanceof KernelError && error.kind === 'not-found') return []
      throw error
    }
  }

  async #items(table: TableRef, set: Pick<NftSet, 'name'>): Promise<readonly ListedElement[]> {
    const request = this.#request(table.family, messages.getElement, (message) => {
      message.string(elementListAttributes.table, table.name)
      message.string(elementListAttributes.set, set.name)
    })
    const lists = await this.#channel.dump(request, {
      action: `list elements of nftables set ${set.name}`,
      parse: ({ payload }) => elementsIn(payload),
    })
    return lists.flat()
  }

  /** The attributes of the table itself, or of all its chains or sets, by name. */
  async #objects(
    table: TableRef,
    { what, message, name, of }: ObjectKind,
  ): Promise<ReadonlyMap<string, Attributes>> {
    const request = this.#request(table.family, message, () => undefined)
    const listed = await this.#channel.dump(request, {
      action: `list ${what}nftables table ${table.name}`,
      parse: ({ payload }) => {
        const attributes = attributesOf(payload, genericBytes)
        // The bytes are valid during this call only.
        return isOf(table, attributes.get(of))
          ? attributesOf(Buffer.from(payload), genericBytes)
          : undefined
      },
    })
    return new Map(
      listed.map((attributes) => [readString(attributes.get(name) ?? zero), attributes]),
    )
  }

  #request(family: NftFamily, type: number, body: (message: MessageWriter) => void): MessageWriter {
    return new MessageWriter(512).message(type, flags.dump, (message) => {
      message.fixed(Uint8Array.of(families[family], 0, 0, 0))
      body(message)
    })
  }
}

interface ObjectKind {
  /** The beginning of the words for what is listed. */
  readonly what: string
  readonly message: number
  /** The attributes for the name of the object and of its table. */
  readonly name: number
  readonly of: number
}

const chainKind: ObjectKind = {
  what: 'chains of ',
  message: messages.getChain,
  name: chainAttributes.name,
  of: chainAttributes.table,
}

const tableKind: ObjectKind = {
  what: '',
  message: messages.getTable,
  name: tableAttributes.name,
  of: tableAttributes.name,
}

const setKind: ObjectKind = {
  what: 'sets of ',
  message: messages.getSet,
  name: setAttributes.name,
  of: setAttributes.table,
}

function policyOf(chain: Attributes): ListedChain['policy'] {
  const policy = chain.get(chainAttributes.policy)
  return policy && (policy.readUInt32BE() === policies.accept ? 'accept' : 'drop')
}

function listed(family: NftFamily, set: NftSet, items: readonly ListedElement[]): ListedElements {
  const byKey = new Map(items.map((item) => [item.key, item]))
  const at = (element: Element) => byKey.get(keyBytes(family, element).toString('latin1'))
  return {
    size: byKey.size,
    has: (element: Element) => {
      const found = at(element)
      if (!found) return false
      const { verdict, target } = element
      if (target) return found.target?.equals(targetBytes(family, target)) ?? false
      if (!verdict) return true
      const chain = 'chain' in verdict ? verdict.chain : ''
      return found.verdict?.code === verdictCodes[verdict.to] && found.verdict.chain === chain
    },
    valueAt: (element) => {
      const found = at(element)
      return found && valueText(family, found)
    },
    others: (known) => {
      const keys = new Set(Array.from(known, (one) => keyBytes(family, one).toString('latin1')))
      return [...byKey.keys()]
        .filter((key) => !keys.has(key))
        .map((key) => keyText(family, set, Buffer.from(key, 'latin1')))
    },
  }
}

function valueText(family: NftFamily, { verdict, target }: ListedElement): string {
  if (!target) {
    const [to = 'another verdict'] =
      Object.entries(verdictCodes).find(([, code]) => code === verdict?.code) ?? []
    return `${to} ${verdict?.chain ?? ''}`.trim()
  }
  const length = addressLength(family)
  return `${addressText(ipFamilyOf(family), target)} . ${target.readUInt16BE(length)}`
}

/** Elements of another length are left out: they are no clients, see `keyText`. */
function rememberedOf(family: NftFamily, items: readonly ListedElement[]): readonly Remembered[] {
  return items.flatMap(({ key, expiresMs }) => {
    const bytes = Buffer.from(key, 'latin1')
    if (bytes.length !== addressLength(family)) return []
    return [{ address: addressText(ipFamilyOf(family), bytes), expiresMs }]
  })
}

function isOf(table: TableRef, name: Buffer | undefined): boolean {
  return name !== undefined && readString(name) === table.name
}
