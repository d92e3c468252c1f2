import { checkChain } from './rule.js'
import type { Rule } from './rule.js'

export const tables = ['filter', 'nat', 'mangle', 'raw', 'security'] as const
export type Table = (typeof tables)[number]

interface TableLines {
  readonly chains: Map<string, string>
  readonly lines: string[]
  /** How many of the lines add a rule. */
  written: number
}

/**
 * The input of one iptables-restore. All changes of a table take effect at once, or none does.
 * Declaring a chain creates or empties it; chains that are not declared stay as they are. The
 * calls for a table keep their order, but all declarations come first, so that rules can jump to
 * chains declared later.
 */
export class Batch {
  readonly #tables = new Map<Table, TableLines>()
  #rules = 0

  /** Creates the chain, or empties it. */
  chain(table: Table, chain: string): this {
    this.#of(table).chains.set(checkChain(chain), '-')
    return this
  }

  /** Whether this batch creates or empties the chain. */
  declares(table: Table, chain: string): boolean {
    return this.#tables.get(table)?.chains.has(chain) === true
  }

  /** Sets the policy of a built-in chain, and empties it. */
  policy(table: Table, chain: string, policy: 'ACCEPT' | 'DROP'): this {
    this.#of(table).chains.set(checkChain(chain), policy)
    return this
  }

  append(table: Table, chain: string, rule: Rule): this {
    return this.#line(table, '-A', chain, rule.text)
  }

  /** Inserts the rule at the head of the chain. */
  prepend(table: Table, chain: string, rule: Rule): this {
    return this.#line(table, '-I', chain, rule.text)
  }

  /** Deletes the first rule equal to this one; the batch fails where there is none. */
  delete(table: Table, chain: string, rule: Rule): this {
    return this.#line(table, '-D', chain, rule.text)
  }

  /** Deletes a rule in the words of iptables-save, even one that `rule` cannot write. */
  deleteSaved(table: Table, chain: string, saved: string): this {
    if (/[\n\r]/.test(saved)) throw new RangeError('saved rule: contains a line break')
    return this.#line(table, '-D', chain, saved)
  }

  /** Empties a chain at this point of the batch; declaring it would do so at the beginning. */
  flush(table: Table, chain: string): this {
    return this.#line(table, '-F', chain)
  }

  /** Removes a chain. At this point it must exist and be empty, and no rule may jump to it. */
  deleteChain(table: Table, chain: string): this {
    return this.#line(table, '-X', chain)
  }

  /**
   * How many transactions of the restore change something. There is one for each table, but the kernel
   * may hold all of it already where chains are only declared. Then it counts none.
   */
  get transactions(): number {
    return [...this.#tables.values()].filter(({ lines }) => lines.length > 0).length
  }

  /** Rules put into a table so far. */
  rulesWritten(table: Table): number {
    return this.#tables.get(table)?.written ?? 0
  }

  /** Declarations and operations so far. */
  get size(): number {
    let size = this.#rules
    for (const { chains } of this.#tables.values()) size += chains.size
    return size
  }

  toString(): string {
    const out: string[] = []
    for (const [table, { chains, lines }] of this.#tables) {
      out.push(`*${table}`)
      for (const [chain, policy] of chains) out.push(`:${chain} ${policy} [0:0]`)
      for (const line of lines) out.push(line)
      out.push('COMMIT')
    }
    return out.length === 0 ? '' : `${out.join('\n')}\n`
  }

  #line(table: Table, verb: string, chain: string, text?: string): this {
    const lines = this.#of(table)
    lines.lines.push(`${verb} ${checkChain(chain)}${text === undefined ? '' : ` ${text}`}`)
    if (verb === '-A' || verb === '-I') lines.written++
    this.#rules++
    return this
  }

  #of(table: Table): TableLines {
    let lines = this.#tables.get(table)
    if (!lines) {
      lines = { chains: new Map(), lines: [], written: 0 }
      this.#tables.set(table, lines)
    }
    return lines
  }
}
