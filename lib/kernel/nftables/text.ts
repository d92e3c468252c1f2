import { checkedAddress, checkedName, checkedPort, safeComment } from './identifiers.js'
import {
  runsOf,
  type Chain,
  type Command,
  type Element,
  type ElementCommand,
  type KeyType,
  type L4Protocol,
  type NftFamily,
  type NftSet,
  type ObjectCommand,
  type Table,
  type Transaction,
} from './model.js'
import { ruleText, targetText, verdictText } from './text-statements.js'

/** The most elements of one command: many make few commands, but long lines are hard to read. */
const elementsPerCommand = 256

/** One line of input, and its commands: one command, or elements of one set. */
export interface CommandLine {
  readonly text: string
  readonly commands: readonly Command[]
}

/** The transaction as input of `nft -f -`, which applies it atomically. */
export function transactionText(transaction: Transaction): string {
  const lines = transactionLines(transaction)
  return lines.length === 0 ? '' : `${lines.map(({ text }) => text).join('\n')}\n`
}

export function transactionLines({ table, commands }: Transaction): readonly CommandLine[] {
  return runsOf(commands, elementsPerCommand).map((run) =>
    'do' in run
      ? { text: commandText(table, run), commands: [run] }
      : { text: elementsText(table, run), commands: run },
  )
}

function elementsText(table: Table, run: readonly ElementCommand[]): string {
  const [first] = run
  const verb = first?.do === 'add-element' ? 'add' : 'delete'
  const elements = run.map(({ element }) => elementText(element, verb === 'add')).join(', ')
  const set = checkedName(first?.element.set.name ?? '')
  return `${verb} element ${tableName(table)} ${set} { ${elements} }`
}

function commandText(table: Table, command: ObjectCommand): string {
  const inTable = tableName(table)
  switch (command.do) {
    case 'add-table':
      return `add table ${inTable} { comment "${safeComment(table.comment)}" ; }`
    case 'delete-table':
      return `delete table ${inTable}`
    case 'add-chain':
      return `add chain ${inTable} ${checkedName(command.chain.name)}${chainBody(command.chain)}`
    case 'flush-chain':
      return `flush chain ${inTable} ${checkedName(command.chain.name)}`
    case 'delete-chain':
      return `delete chain ${inTable} ${checkedName(command.chain.name)}`
    case 'add-rule':
      return `add rule ${inTable} ${checkedName(command.chain)} ${ruleText(table.family, command.rule)}`
    case 'add-set':
      return `add ${setText(table, command.set)} { ${setBody(table, command.set)} }`
    case 'flush-set':
      return `flush ${setText(table, command.set)}`
    case 'delete-set':
      return `delete ${setText(table, command.set)}`
  }
}

/** Where the kernel calls a chain; undefined for one that others jump to. */
export function hookText({ base }: Chain): string | undefined {
  return base && `type ${base.type} hook ${base.hook} priority ${base.priority}`
}

function chainBody(chain: Chain): string {
  const parts: string[] = []
  const hook = hookText(chain)
  const { comment } = chain
  if (hook !== undefined) parts.push(`${hook} ;`)
  if (comment !== undefined) parts.push(`comment "${safeComment(comment)}" ;`)
  return parts.length === 0 ? '' : ` { ${parts.join(' ')} }`
}

function setText(table: Table, set: NftSet): string {
  return `${set.holds === 'keys' ? 'set' : 'map'} ${tableName(table)} ${checkedName(set.name)}`
}

/** The types of a set, and how it forgets. */
export function setForm({ family }: Pick<Table, 'family'>, set: NftSet): string {
  const types = set.protocol ? targetMapType(family, set.protocol, set.key) : typeText(family, set)
  if (set.timeoutSeconds === undefined) return types
  return `${types} flags dynamic, timeout ; timeout ${Math.floor(set.timeoutSeconds)}s ;`
}

function setBody(table: Table, set: NftSet): string {
  const form = setForm(table, set)
  return set.comment === undefined ? form : `${form} comment "${safeComment(set.comment)}" ;`
}

function typeText(family: NftFamily, { key, holds }: NftSet): string {
  const address = family === 'ip' ? 'ipv4_addr' : 'ipv6_addr'
  const types = key.map((type) => (type === 'address' ? address : type)).join(' . ')
  return `type ${types}${holds === 'verdicts' ? ' : verdict' : ''} ;`
}

/**
 * The type of numbers has no length, so `typeof` describes these maps by example expressions.
 * `th dport` would fit every protocol, but nft 1.0.6 cannot use a map with it.
 */
function targetMapType(family: NftFamily, protocol: L4Protocol, key: readonly KeyType[]): string {
  const target = `${family} daddr . ${protocol} dport`
  const drawn = 'numgen random mod 2'
  return `typeof ${key.length === 1 ? drawn : `${target} . ${drawn}`} : ${target} ;`
}

/** A deletion names the key only, because older releases of nft refuse verdicts and comments there. */
function elementText(element: Element, whole: boolean): string {
  const parts = element.key.map((value, index) => keyText(element.set.key[index], value))
  const key = parts.join(' . ')
  if (!whole) return key
  if (element.expiresMs !== undefined) return `${key} expires ${Math.ceil(element.expiresMs)}ms`
  const comment = element.comment === undefined ? '' : ` comment "${safeComment(element.comment)}"`
  if (element.verdict) return `${key}${comment} : ${verdictText(element.verdict)}`
  return element.target ? `${key} : ${targetText(element.target)}` : `${key}${comment}`
}

function keyText(type: KeyType | undefined, value: string | number): string {
  if (type === 'inet_service') return String(checkedPort(Number(value)))
  if (type === 'number') return String(Number(value))
  return type === 'address' ? checkedAddress(String(value)) : checkedName(String(value))
}

const tableName = ({ family, name }: Table) => `${family} ${checkedName(name)}`
