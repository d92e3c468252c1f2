/**
 * iptables for Node.js: save, restore, rules as values, and errors that name the line. Depends on
 * nothing but Node and the iptables programs; also exported as `kube-proxy-ts/iptables`.
 */
import { Batch } from './iptables/batch.js'
import { runProgram, timeoutAfter } from './iptables/command.js'
import { classifyFailure, isIptablesError } from './iptables/error.js'
import { findPrograms, isAtLeast } from './iptables/flavour.js'
import { isLeftOut, listChain, visitChains } from './iptables/left-out.js'
import { parseCounters, SavedReader, SavedTables } from './iptables/saved.js'
import { Memory } from './iptables/memory.js'
import { lockHolder, runLocked } from './iptables/lock.js'
import type { Table } from './iptables/batch.js'
import type { CommandOutput, Run, RunOptions } from './iptables/command.js'
import type { Installed, Programs, Family } from './iptables/flavour.js'
import type { Capabilities, OpenOptions, RestoreOptions } from './iptables/options.js'
import type { Rule } from './iptables/rule.js'
import type { CountedRule, SavedTable, SavedVisitor } from './iptables/saved.js'

export { Batch, tables } from './iptables/batch.js'
export { argumentsOf, optionsOf, splitArguments } from './iptables/arguments.js'
export { canonicalOptions, canonicalRule, isSameRule } from './iptables/canonical.js'
export { compareChain } from './iptables/compare.js'
export { IptablesError, isIptablesError } from './iptables/error.js'
export { backendInUse } from './iptables/flavour.js'
export { commentOf, conditionsOf, parseRule, targetOf } from './iptables/parse.js'
export { checkChain, not, printableComment, rule, Rule } from './iptables/rule.js'
export * from './iptables/matches.js'
export { isSourceHash, runBytecode, sourceIn } from './iptables/source-hash.js'
export { parseCounters, parseSaved } from './iptables/saved.js'
export type { RuleOption } from './iptables/arguments.js'
export type { Table } from './iptables/batch.js'
export type { CommandOutput, Run, RunOptions } from './iptables/command.js'
export type { ChainWish, RuleDifference, WantedRule } from './iptables/compare.js'
export type { IptablesErrorKind } from './iptables/error.js'
export type { Backend, Family, Version } from './iptables/flavour.js'
export type {
  Capabilities,
  Locked,
  OpenOptions,
  PlacedRule,
  RestoreOptions,
} from './iptables/options.js'
export type { Match, Not, RuleSpec } from './iptables/rule.js'
export type { CountedRule, SavedChain, SavedTable, SavedVisitor } from './iptables/saved.js'

const leastWaitMs = 500

/** What a kernel and a program can do they do not unlearn; what they cannot do a module may change. */
const accepted = new Memory<true>()

/**
 * The legacy program waits for the module of a table as long as it would wait for the lock. On a
 * slow node that is too short. The loading goes on without it, and holds the lock until its end.
 */
const isOutOfTime = (error: unknown) =>
  isIptablesError(error) && /interrupted system call/i.test(error.detail)

/** The iptables programs of one family and one backend. */
export class Iptables {
  readonly family: Family
  readonly capabilities: Capabilities
  readonly #programs: Programs
  /** The options to wait for the lock, of iptables and of iptables-restore. */
  readonly #wait: { readonly command: readonly string[]; readonly restore: readonly string[] }
  readonly #waitSeconds: number
  readonly #onLocked: NonNullable<OpenOptions['onLocked']>
  readonly #run: Run
  readonly #chainNames: OpenOptions['chainNames']
  readonly #sought: OpenOptions['sought']
  #timeoutMs: number

  private constructor(installed: Installed, options: OpenOptions) {
    const { backend, version, programs } = installed
    const { family, waitSeconds = 5, run = runProgram, onLocked = () => false } = options
    const since162 = isAtLeast(version, [1, 6, 2])
    const wait = ['-w', String(waitSeconds)]
    this.family = family
    this.capabilities = {
      ...{ backend, version, waitsForLock: since162, randomFully: since162 },
      sparseMasks: backend === 'legacy' || isAtLeast(version, [1, 8, 8]),
    }
    this.#programs = programs
    this.#wait = {
      command: isAtLeast(version, [1, 4, 22]) ? wait : isAtLeast(version, [1, 4, 20]) ? ['-w'] : [],
      restore: since162 ? wait : [],
    }
    this.#waitSeconds = waitSeconds
    this.#onLocked = onLocked
    this.#run = run
    this.#chainNames = options.chainNames
    this.#sought = options.sought
    this.#timeoutMs = (waitSeconds + 120) * 1000
  }

  /** Throws IptablesError `missing` where the programs are not installed. */
  static async open(options: OpenOptions): Promise<Iptables> {
    const { family, backend = 'auto', run = runProgram } = options
    return new Iptables(await findPrograms(run, family, backend), options)
  }

  /**
   * The tables that exist now, or one of them, with the rules of all chains or of the wanted ones.
   */
  async save(table?: Table, wants?: (chain: string) => boolean): Promise<SavedTable[]> {
    const saved = new SavedTables(wants)
    const leftOut = await this.#visit(saved, table)
    for (const one of leftOut) await this.#visitChains(saved, one, wants)
    return saved.all
  }

  /** Reads the tables that exist now, or one of them, without ever holding all of their text. */
  async visit(visitor: SavedVisitor, table?: Table): Promise<void> {
    const leftOut = await this.#visit(visitor, table)
    for (const one of leftOut) await this.#visitChains(visitor, one)
  }

  /** Returns the tables that the program leaves out. */
  async #visit(visitor: SavedVisitor, table: Table | undefined): Promise<readonly Table[]> {
    const reader = new SavedReader(visitor)
    const options = { onOutput: (text: string) => reader.push(text) }
    const args = table ? ['-t', table] : []
    const action = `save ${table ?? 'all tables'}`
    const { stdout } = await this.#expect(action, this.#programs.save, args, options)
    // A `run` of the caller may return all output at once.
    reader.push(stdout)
    return reader.leftOut
  }

  /** Reads chain by chain what `iptables-save` has left out. */
  async #visitChains(visitor: SavedVisitor, table: Table, wants?: (chain: string) => boolean) {
    await visitChains(visitor, {
      ...{ table, wants, all: await this.#chainNames?.(this.family) },
      sought: this.#sought?.filter((one) => one.table === table),
      list: (chain) => this.listChain(table, chain),
    })
  }

  /** The rules of a table with the packets they have matched so far. */
  async counters(table: Table): Promise<readonly CountedRule[]> {
    const args = ['-c', '-t', table]
    const { stdout } = await this.#expect(`count ${table}`, this.#programs.save, args)
    return parseCounters(stdout)
  }

  /** Applies the batch: each of its tables as a whole or not at all. */
  async restore(batch: Batch | string, options: RestoreOptions = {}): Promise<void> {
    const input = batch.toString()
    if (input === '') return
    const args = [...this.#wait.restore]
    if (options.noFlush ?? true) args.push('--noflush')
    if (options.test ?? false) args.push('--test')
    await this.#expect('restore', this.#programs.restore, args, { stdin: input })
  }

  /**
   * The rules of one chain as `iptables -S` prints them, or undefined when there is no such chain.
   * In a chain with a rule that iptables cannot read, only the rules of `sought` are found. Such a
   * chain without any of them is undefined, too.
   */
  listChain(table: Table, chain: string): Promise<readonly string[] | undefined> {
    return listChain((...question) => this.#ask(...question), [table, chain], this.#sought)
  }

  async #ask(action: string, args: readonly string[]): Promise<string | undefined> {
    try {
      const all = [...this.#wait.command, ...args]
      return (await this.#expect(action, this.#programs.command, all)).stdout
    } catch (error) {
      if (isIptablesError(error, 'not-found')) return undefined
      throw error
    }
  }

  /** Whether any of these chains exists. The nft backend answers without reading all rules. */
  async hasAny(chains: readonly (readonly [Table, string])[]): Promise<boolean> {
    if (this.capabilities.backend === 'legacy') {
      // The legacy program creates a table when it is asked for a chain of that table.
      const saved = await this.save(undefined, () => false)
      return chains.some(([table, chain]) =>
        saved.some((one) => one.table === table && one.chains.has(chain)),
      )
    }
    const present = await this.#chainNames?.(this.family)
    if (present) return chains.some((placed) => present.has(placed.join(' ')))
    for (const [table, chain] of chains) {
      if (await this.listChain(table, chain)) return true
    }
    return false
  }

  /** Whether this kernel and this build of iptables take such a rule. Changes nothing. */
  supports(table: Table, rule: Rule): Promise<boolean> {
    return this.#takes(table, [rule])
  }

  /** For each rule, whether it is supported. Starts one program where all are. */
  async supportsEach(table: Table, rules: readonly Rule[]): Promise<readonly boolean[]> {
    if (await this.#takes(table, rules)) return rules.map(() => true)
    const answers: boolean[] = []
    for (const one of rules) answers.push(await this.#takes(table, [one]))
    return answers
  }

  /**
   * Throws IptablesError where this kernel or this build of iptables refuses one of the rules.
   * Changes nothing. What was taken is not tried again for a minute.
   */
  async require(rules: readonly (readonly [Table, Rule])[]): Promise<void> {
    const scratch = 'IPTABLES-TS-PROBE'
    const batch = new Batch()
    const asked = (table: Table, { text }: Rule) => this.#question(`${table} ${text}`)
    const unknown = rules.filter((one) => !accepted.get(this.#run, asked(...one)))
    for (const [table] of unknown) batch.chain(table, scratch)
    for (const [table, one] of unknown) batch.append(table, scratch, one)
    await this.restore(batch, { test: true })
    for (const one of unknown) accepted.set(this.#run, asked(...one), true)
  }

  /** Like `check`, unless that has succeeded in the last minute. */
  async ready(): Promise<void> {
    if (!accepted.get(this.#run, this.#question('readable'))) await this.check()
  }

  /** Throws IptablesError when the rules cannot even be read: no rights, or no table `nat`. */
  async check(): Promise<void> {
    const args = [...this.#wait.command, '-t', 'nat', '-S', 'POSTROUTING']
    const began = performance.now()
    for (let isLoading = false; ;) {
      try {
        await this.#expect('list nat POSTROUTING', this.#programs.command, args)
        accepted.set(this.#run, this.#question('readable'), true)
        return
      } catch (error) {
        // A rule that only nft can write says that the table may be read.
        if (isLeftOut(error)) return
        isLoading ||= isOutOfTime(error)
        const isBusy = isLoading && (isOutOfTime(error) || isIptablesError(error, 'locked'))
        if (!isBusy || performance.now() - began > this.#timeoutMs) throw error
      }
    }
  }

  #question(text: string): string {
    return `${this.family} ${this.capabilities.backend} ${text}`
  }

  async #takes(table: Table, rules: readonly Rule[]): Promise<boolean> {
    try {
      await this.require(rules.map((one) => [table, one]))
      return true
    } catch (error) {
      if (isIptablesError(error, 'unsupported') || isIptablesError(error, 'invalid')) return false
      throw error
    }
  }

  async #expect(
    action: string,
    file: string,
    args: readonly string[],
    options: RunOptions = {},
  ): Promise<CommandOutput> {
    const began = performance.now()
    for (;;) {
      const tried = performance.now()
      const result = await this.#runOnce(file, args, options)
      if (result.code === 0) return result
      const failed = { action: `${file}: ${action}`, ...result, input: options.stdin }
      const error = classifyFailure(failed)
      if (error.kind !== 'locked') throw error
      const waitedMs = performance.now() - began
      const holder = await lockHolder()
      if (!(await this.#onLocked({ action, waitedMs, holder }))) {
        throw classifyFailure({ ...failed, holder })
      }
      // A program that does not wait itself must not be started again at once.
      const waitMs = Math.max(0, tried + leastWaitMs - performance.now())
      await new Promise((resolve) => setTimeout(resolve, waitMs))
    }
  }

  async #runOnce(file: string, args: readonly string[], given: RunOptions): Promise<CommandOutput> {
    const timeoutMs = this.#timeoutMs
    const options = { timeoutMs, ...given }
    const takesNoLock = file === this.#programs.restore && !this.capabilities.waitsForLock
    try {
      if (!takesNoLock) return await this.#run(file, args, options)
      return await runLocked(this.#run, { file, args, options, waitSeconds: this.#waitSeconds })
    } catch (error) {
      if (isIptablesError(error, 'timed-out')) this.#timeoutMs = timeoutAfter(timeoutMs)
      throw error
    }
  }
}
