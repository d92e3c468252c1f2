import { tables } from './batch.js'
import { leftOutError } from './error.js'
import type { Table } from './batch.js'

export interface SavedChain {
  readonly name: string
  /** `-` for a chain that is not built in. */
  readonly policy: string
  /** Each rule as iptables-save prints it, without `-A CHAIN`. */
  readonly rules: readonly string[]
}

/** One table, as iptables-save prints it. */
export interface SavedTable {
  readonly table: Table
  readonly chains: ReadonlyMap<string, SavedChain>
}

/** Gets what iptables-save prints, in its order: all chains of a table, then their rules. */
export interface SavedVisitor {
  chain(table: Table, name: string, policy: string): void
  rule(table: Table, chain: string, rule: string): void
}

/** What iptables-nft-save prints instead of a table that has a rule which only nft can write. */
const leftOutTable = /^# Table `(\w+)' is incompatible/

/**
 * Reads the output of iptables-save piece by piece. All other lines are comments and are skipped.
 */
export class SavedReader {
  /** Tables that exist, and whose chains and rules are not printed. */
  readonly leftOut: Table[] = []
  readonly #visitor: SavedVisitor
  #table: Table | undefined
  #rest = ''

  constructor(visitor: SavedVisitor) {
    this.#visitor = visitor
  }

  push(text: string): void {
    const whole = this.#rest + text
    let start = 0
    for (let end = whole.indexOf('\n'); end >= 0; end = whole.indexOf('\n', start)) {
      this.#line(whole.slice(start, end))
      start = end + 1
    }
    this.#rest = whole.slice(start)
  }

  #line(line: string): void {
    if (line.startsWith('# Table')) {
      const table = tableIn(`*${leftOutTable.exec(line)?.[1] ?? ''}`)
      if (table) this.leftOut.push(table)
    }
    if (line.startsWith('*')) this.#table = tableIn(line)
    if (!this.#table) return
    if (line.startsWith('-A ')) {
      const end = line.indexOf(' ', 3)
      const chain = line.slice(3, end < 0 ? undefined : end)
      this.#visitor.rule(this.#table, chain, end < 0 ? '' : line.slice(end + 1))
    } else if (line.startsWith(':')) {
      const [name = '', policy = '-'] = line.slice(1).split(' ')
      this.#visitor.chain(this.#table, name, policy)
    }
  }
}

type MutableChain = SavedChain & { readonly rules: string[] }

/** Keeps all tables and chains, and the rules of the wanted chains. */
export class SavedTables implements SavedVisitor {
  readonly #tables = new Map<Table, Map<string, MutableChain>>()
  readonly #wants: (chain: string) => boolean

  constructor(wants: (chain: string) => boolean = () => true) {
    this.#wants = wants
  }

  chain(table: Table, name: string, policy: string): void {
    let chains = this.#tables.get(table)
    if (!chains) {
      chains = new Map()
      this.#tables.set(table, chains)
    }
    chains.set(name, { name, policy, rules: [] })
  }

  rule(table: Table, chain: string, rule: string): void {
    if (this.#wants(chain)) this.#tables.get(table)?.get(chain)?.rules.push(rule)
  }

  get all(): SavedTable[] {
    return [...this.#tables].map(([table, chains]) => ({ table, chains }))
  }
}

export function parseSaved(text: string): SavedTable[] {
  const saved = new SavedTables()
  new SavedReader(saved).push(`${text}\n`)
  return saved.all
}

/** A rule and how many packets it has matched. */
export interface CountedRule {
  readonly table: Table
  readonly chain: string
  readonly rule: string
  readonly packets: number
}

/** Reads the output of `iptables-save -c`. Throws IptablesError if that leaves out the table. */
export function parseCounters(text: string): CountedRule[] {
  const leftOut = new RegExp(leftOutTable, 'm').exec(text)?.[1]
  if (leftOut !== undefined) throw leftOutError(leftOut)
  const rules: CountedRule[] = []
  let table: Table | undefined
  for (const line of text.split('\n')) {
    if (line.startsWith('*')) table = tableIn(line)
    const found = /^\[(\d+):\d+\] -A (\S+) ?(.*)$/.exec(line)
    if (!found || !table) continue
    const [, packets = '', chain = '', rule = ''] = found
    rules.push({ table, chain, rule, packets: Number(packets) })
  }
  return rules
}

/** The table that a line `*nat` begins. */
function tableIn(line: string): Table | undefined {
  return tables.find((known) => known === line.slice(1).trim())
}
