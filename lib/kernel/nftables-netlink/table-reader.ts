import { KernelError } from '../../errors.js'
import { formatIp } from '../../state/ip.js'
import type { NetlinkChannel } from '../netlink/channel.js'
import { attributesOf, readString } from '../netlink/message-reader.js'
import { MessageWriter } from '../netlink/message-writer.js'
import { flags } from '../netlink/protocol.js'
import type { Element, NftFamily, NftSet, TableRef } from '../nftables/model.js'
import type { ListedElements, ListedRule, Remembered, RulesetReader } from '../nftables/reader.js'
import {
  chainAttributes,
  elementListAttributes,
  families,
  genericBytes,
  messages,
  ruleAttributes,
  tableAttributes,
  tableFlags,
  verdictCodes,
} from './protocol.js'
import { anonymousSetsIn, isSameRule } from './rule-match.js'
import { elementsIn, keyBytes, keyText, targetBytes, type ListedElement } from './sets.js'

/** Reads tables by netlink dumps, which do not block the event loop. */
export class TableReader implements RulesetReader {
  readonly #channel: NetlinkChannel

  constructor(channel: NetlinkChannel) {
    this.#channel = channel
  }

  async chains(table: TableRef): Promise<ReadonlyMap<string, readonly ListedRule[]>> {
    const chains = new Map<string, ListedRule[]>()
    for (const name of await this.#chainNames(table)) chains.set(name, [])
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
      chains.get(chain)?.push({
        isLike: (rule) => isSameRule(table.family, rule, { expressions, sets }),
      })
    }
    return chains
  }

  async isDormant(table: TableRef): Promise<boolean> {
    const request = this.#request(table.family, messages.getTable, () => undefined)
    const flagsOfTable = await this.#channel.dump(request, {
      action: `list nftables table ${table.name}`,
      parse: ({ payload }) => {
        const attributes = attributesOf(payload, genericBytes)
        if (!isOf(table, attributes.get(tableAttributes.name))) return undefined
        return attributes.get(tableAttributes.flags)?.readUInt32BE()
      },
    })
    return flagsOfTable.some((bits) => (bits & tableFlags.dormant) !== 0)
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
    if ((await this.#chainNames(table)).length === 0) return found
    for (const set of sets) {
      try {
        found.set(set.name, rememberedOf(table.family, await this.#items(table, set)))
      } catch (error) {
        if (!(error instanceof KernelError) || error.kind !== 'not-found') throw error
      }
    }
    return found
  }

  /** An anonymous set goes with its rule, which somebody may replace meanwhile. */
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

  #chainNames(table: TableRef): Promise<readonly string[]> {
    const request = this.#request(table.family, messages.getChain, () => undefined)
    return this.#channel.dump(request, {
      action: `list chains of nftables table ${table.name}`,
      parse: ({ payload }) => {
        const attributes = attributesOf(payload, genericBytes)
        const name = attributes.get(chainAttributes.name)
        return name && isOf(table, attributes.get(chainAttributes.table))
          ? readString(name)
          : undefined
      },
    })
  }

  #request(family: NftFamily, type: number, body: (message: MessageWriter) => void): MessageWriter {
    return new MessageWriter(512).message(type, flags.dump, (message) => {
      message.fixed(Uint8Array.of(families[family], 0, 0, 0))
      body(message)
    })
  }
}

function listed(family: NftFamily, set: NftSet, items: readonly ListedElement[]): ListedElements {
  const byKey = new Map(items.map((item) => [item.key, item]))
  return {
    size: byKey.size,
    has: (element: Element) => {
      const found = byKey.get(keyBytes(family, element).toString('latin1'))
      if (!found) return false
      const { verdict, target } = element
      if (target) return found.target?.equals(targetBytes(family, target)) ?? false
      if (!verdict) return true
      const chain = 'chain' in verdict ? verdict.chain : ''
      return found.verdict?.code === verdictCodes[verdict.to] && found.verdict.chain === chain
    },
    others: (known) => {
      const keys = new Set(Array.from(known, (one) => keyBytes(family, one).toString('latin1')))
      return [...byKey.keys()]
        .filter((key) => !keys.has(key))
        .map((key) => keyText(family, set, Buffer.from(key, 'latin1')))
    },
  }
}

function rememberedOf(family: NftFamily, items: readonly ListedElement[]): readonly Remembered[] {
  return items.map(({ key, expiresMs }) => {
    const bytes = Buffer.from(key, 'latin1')
    if (bytes.length !== (family === 'ip' ? 4 : 16)) {
      throw new KernelError('failed', 'list remembered clients: the set holds no addresses')
    }
    const value = BigInt(`0x${bytes.toString('hex')}`)
    return { address: formatIp(family === 'ip' ? 'IPv4' : 'IPv6', value), expiresMs }
  })
}

function isOf(table: TableRef, name: Buffer | undefined): boolean {
  return name !== undefined && readString(name) === table.name
}
