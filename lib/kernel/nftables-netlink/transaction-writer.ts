import { checkedName, safeComment } from '../nftables/identifiers.js'
import {
  runsOf,
  type Chain,
  type Command,
  type ElementCommand,
  type ObjectCommand,
  type Rule,
  type Table,
  type Transaction,
} from '../nftables/model.js'
import { flags } from '../netlink/protocol.js'
import { MessageWriter } from '../netlink/message-writer.js'
import {
  batch,
  chainAttributes,
  commentBytes,
  elementListAttributes,
  families,
  hookAttributes,
  hooks,
  messages,
  ruleAttributes,
  setAttributes,
  tableAttributes,
  userData,
  userDataTypes,
} from './protocol.js'
import {
  anonymousItems,
  elementItem,
  writeAnonymousSet,
  writeSet,
  type AnonymousSet,
  type WriteItem,
} from './sets.js'
import { anonymousSetOf, writeStatement } from './statements.js'

/** Elements go in lists whose length has 16 bits; this leaves room for the largest element. */
const listBytesMax = 60_000

/**
 * Makes a name for a set that belongs to one rule, unique in the table. The kernel can make names
 * from a pattern, but then it reads the names of all other sets each time: half a minute for 20,000
 * rules.
 */
export type NameSet = () => string

export function uniqueSetNames(token: string): NameSet {
  let count = 0
  return () => `__map${++count}-${token}`
}

/** One transaction as one datagram of netlink messages. */
interface WrittenTransaction {
  readonly messages: MessageWriter
  /** The command that the message at an index belongs to; undefined for the frame. */
  readonly origins: readonly (Command | undefined)[]
}

/**
 * Writes the messages of a transaction between the marks of a batch. Only the last command asks for
 * an acknowledgement; the kernel reports failures in any case. A batch without its end mark is a
 * trial.
 */
export function writeTransaction(
  { table, commands }: Transaction,
  nameSet: NameSet,
  ends = true,
): WrittenTransaction {
  const writing = new TransactionWriting(table, nameSet)
  writing.frame(batch.begin)
  const runs = runsOf(commands)
  for (const [index, run] of runs.entries()) {
    writing.acknowledges = index === runs.length - 1
    if ('do' in run) writing.object(run)
    else writing.elements(run)
  }
  writing.acknowledges = false
  if (ends) writing.frame(batch.end)
  return writing
}

class TransactionWriting implements WrittenTransaction {
  readonly messages = new MessageWriter(16 * 1024)
  readonly origins: (Command | undefined)[] = []
  readonly #table: Table
  /** nfgenmsg: family, version, resource. */
  readonly #header: Uint8Array
  readonly #nameSet: NameSet
  #lastSetId = 0
  /** Whether messages ask for an acknowledgement. */
  acknowledges = false

  constructor(table: Table, nameSet: NameSet) {
    this.#nameSet = nameSet
    this.#table = { ...table, name: checkedName(table.name) }
    this.#header = Uint8Array.of(families[table.family], 0, 0, 0)
  }

  frame(type: number): void {
    const header = Uint8Array.of(0, 0, batch.resource >> 8, batch.resource & 0xff)
    this.messages.message(type, 0, (message) => message.fixed(header))
    this.origins.push(undefined)
  }

  object(command: ObjectCommand): void {
    switch (command.do) {
      case 'add-table':
        this.#message(command, messages.newTable, flags.create, (message) => {
          message.string(tableAttributes.name, this.#table.name)
          message.bytes(tableAttributes.userData, commentData(this.#table.comment))
        })
        return
      case 'delete-table':
        this.#message(command, messages.deleteTable, 0, (message) =>
          message.string(tableAttributes.name, this.#table.name),
        )
        return
      case 'add-chain':
        this.#message(command, messages.newChain, flags.create, (message) => {
          this.#name(message, chainAttributes.name, command.chain.name)
          writeChain(message, command.chain)
        })
        return
      case 'flush-chain':
        this.#byName(command, messages.deleteRule, ruleAttributes.chain, command.chain.name)
        return
      case 'delete-chain':
        this.#byName(command, messages.deleteChain, chainAttributes.name, command.chain.name)
        return
      case 'add-rule':
        this.#rule(command, command.chain, command.rule)
        return
      case 'add-set':
        this.#message(command, messages.newSet, flags.create, (message) => {
          this.#name(message, setAttributes.name, command.set.name)
          message.be32(setAttributes.id, ++this.#lastSetId)
          writeSet(message, this.#table.family, command.set)
        })
        return
      case 'flush-set':
        this.#byName(command, messages.deleteElement, elementListAttributes.set, command.set.name)
        return
      case 'delete-set':
        this.#byName(command, messages.deleteSet, setAttributes.name, command.set.name)
    }
  }

  #byName(command: Command, type: number, attribute: number, name: string): void {
    this.#message(command, type, 0, (message) => this.#name(message, attribute, name))
  }

  /** Writes commands of one verb and one set. */
  elements(commands: readonly ElementCommand[]): void {
    const [first] = commands
    if (!first) return
    const isAdding = first.do === 'add-element'
    this.#list(
      commands.map((command) => ({
        origin: command,
        write: elementItem(this.#table.family, command.element, isAdding),
      })),
      {
        type: isAdding ? messages.newElement : messages.deleteElement,
        flags: isAdding ? flags.create : 0,
        set: checkedName(first.element.set.name),
      },
    )
  }

  #rule(command: Command, chain: string, rule: Rule): void {
    const sets = rule.statements.map((statement) => {
      const anonymous = anonymousSetOf(statement)
      return anonymous && this.#anonymousSet(command, anonymous)
    })
    this.#message(command, messages.newRule, flags.create | flags.append, (message) => {
      this.#name(message, ruleAttributes.chain, chain)
      message.nest(ruleAttributes.expressions, (expressions) => {
        for (const [index, statement] of rule.statements.entries()) {
          writeStatement(expressions, this.#table.family, statement, sets[index])
        }
      })
      if (rule.comment !== undefined) {
        message.bytes(ruleAttributes.userData, commentData(rule.comment))
      }
    })
  }

  #anonymousSet(command: Command, set: AnonymousSet): { set: string; id: number } {
    const id = ++this.#lastSetId
    const name = this.#nameSet()
    const items = anonymousItems(this.#table.family, set)
    this.#message(command, messages.newSet, flags.create, (message) => {
      this.#name(message, setAttributes.name, name)
      message.be32(setAttributes.id, id)
      writeAnonymousSet(message, this.#table.family, set, items.length)
    })
    this.#list(
      items.map((write) => ({ origin: command, write })),
      { type: messages.newElement, flags: flags.create, set: name, id },
    )
    return { set: name, id }
  }

  #list(
    items: readonly { readonly origin: Command; readonly write: WriteItem }[],
    to: { type: number; flags: number; set: string; id?: number },
  ): void {
    for (let next = 0; next < items.length;) {
      const origin = items[next]?.origin
      this.#message(origin, to.type, to.flags, (message) => {
        message.string(elementListAttributes.table, this.#table.name)
        message.string(elementListAttributes.set, to.set)
        if (to.id !== undefined) message.be32(elementListAttributes.setId, to.id)
        message.nest(elementListAttributes.elements, (list) => {
          const start = list.byteLength
          for (; next < items.length && list.byteLength - start < listBytesMax; next++) {
            items[next]?.write(list)
          }
        })
      })
    }
  }

  /** The attribute of the table has the same number in all messages. */
  #name(message: MessageWriter, attribute: number, name: string): void {
    message.string(tableOfObject, this.#table.name)
    message.string(attribute, checkedName(name))
  }

  #message(
    origin: Command | undefined,
    type: number,
    messageFlags: number,
    body: (message: MessageWriter) => void,
  ): void {
    const wanted = this.acknowledges ? messageFlags | flags.ack : messageFlags
    this.messages.message(type, wanted, (message) => {
      message.fixed(this.#header)
      body(message)
    })
    this.origins.push(origin)
  }
}

const tableOfObject = 1

/** All but the name. */
export function writeChain(message: MessageWriter, { base, comment }: Chain): void {
  if (base) {
    message.nest(chainAttributes.hook, (hook) =>
      hook
        .be32(hookAttributes.number, hooks[base.hook])
        .be32(hookAttributes.priority, base.priority),
    )
    message.string(chainAttributes.type, base.type)
  }
  if (comment !== undefined) message.bytes(chainAttributes.userData, commentData(comment))
}

const commentData = (text: string) =>
  userData([userDataTypes.comment, commentBytes(safeComment(text))])
