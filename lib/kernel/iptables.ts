/**
 * iptables for Node.js: save, restore, rules as values, and errors that name the line. Depends on
 * nothing but Node and the iptables programs; also exported as `kube-proxy-ts/iptables`.
 */
import { Batch } from './iptables/batch.js'
import { runProgram } from './iptables/command.js'
import { classifyFailure, IptablesError, isIptablesError } from './iptables/error.js'
import { backendInUse, findInstalled, isAtLeast, programsOf } from './iptables/flavour.js'
import { parseSaved } from './iptables/saved.js'
import { checkChain } from './iptables/rule.js'
import type { Table } from './iptables/batch.js'
import type { CommandOutput, Run } from './iptables/command.js'
import type { Backend, Family, Installed, Programs, Version } from './iptables/flavour.js'
import type { Rule } from './iptables/rule.js'
import type { SavedTable } from './iptables/saved.js'

export { Batch, tables } from './iptables/batch.js'
export { IptablesError, isIptablesError } from './iptables/error.js'
export { backendInUse } from './iptables/flavour.js'
export { checkChain, not, printableComment, rule, Rule, splitArguments } from './iptables/rule.js'
export * from './iptables/matches.js'
export { parseSaved } from './iptables/saved.js'
export type { Table } from './iptables/batch.js'
export type { CommandOutput, Run } from './iptables/command.js'
export type { IptablesErrorKind } from './iptables/error.js'
export type { Backend, Family, Version } from './iptables/flavour.js'
export type { Match, Not, RuleSpec } from './iptables/rule.js'
export type { SavedChain, SavedTable } from './iptables/saved.js'

export interface OpenOptions {
  readonly family: Family
  /** `auto`, the default: whichever already holds the node's rules, else the system's default. */
  readonly backend?: Backend | 'auto'
  /** How long a restore waits for the xtables lock; 5 s. */
  readonly waitSeconds?: number
  readonly run?: Run
}

export interface RestoreOptions {
  /** Parses and checks, changes nothing. */
  readonly test?: boolean
  /** Leaves tables and chains alone that are not mentioned; true unless said otherwise. */
  readonly noFlush?: boolean
}

export interface Capabilities {
  readonly backend: Backend
  readonly version: Version
  /** `-w` of iptables-restore, since 1.6.2; before that it waits for nobody. */
  readonly waitsForLock: boolean
  /** `--random-fully` of MASQUERADE, since 1.6.2. */
  readonly randomFully: boolean
}

/** The iptables programs of one family and one backend. */
export class Iptables {
  readonly family: Family
  readonly capabilities: Capabilities
  readonly #programs: Programs
  readonly #wait: readonly string[]
  readonly #run: Run
  readonly #timeoutMs: number

  constructor(family: Family, installed: Installed, run: Run, waitSeconds = 5) {
    const { backend, version, programs } = installed
    const since162 = isAtLeast(version, [1, 6, 2])
    this.family = family
    this.capabilities = { backend, version, waitsForLock: since162, randomFully: since162 }
    this.#programs = programs
    this.#wait = since162 ? ['-w', String(waitSeconds)] : []
    this.#run = run
    this.#timeoutMs = (waitSeconds + 120) * 1000
  }

  /** Throws IptablesError `missing` where the programs are not installed. */
  static async open(options: OpenOptions): Promise<Iptables> {
    const { family, backend = 'auto', run = runProgram } = options
    const wanted = backend === 'auto' ? await backendInUse(run) : backend
    const installed =
      (await findInstalled(run, family, wanted)) ??
      (backend === 'auto' && wanted ? await findInstalled(run, family) : undefined)
    if (installed) return new Iptables(family, installed, run, options.waitSeconds)
    const { command } = programsOf(family, wanted)
    throw new IptablesError('missing', `find ${command}: not installed; install iptables`)
  }

  /** The tables that exist now, or one of them. */
  async save(table?: Table): Promise<SavedTable[]> {
    return parseSaved(await this.saveText(table))
  }

  async saveText(table?: Table): Promise<string> {
    const args = table ? ['-t', table] : []
    return (await this.#expect(`save ${table ?? 'all tables'}`, this.#programs.save, args)).stdout
  }

  /** Applies the batch: each of its tables as a whole or not at all. */
  async restore(batch: Batch | string, options: RestoreOptions = {}): Promise<void> {
    const input = batch.toString()
    if (input === '') return
    const args = [...this.#wait]
    if (options.noFlush ?? true) args.push('--noflush')
    if (options.test ?? false) args.push('--test')
    await this.#expect('restore', this.#programs.restore, args, input)
  }

  /** The rules of one chain as `iptables -S` prints them, or undefined when there is no such chain. */
  async listChain(table: Table, chain: string): Promise<readonly string[] | undefined> {
    const args = [...this.#wait, '-t', table, '-S', checkChain(chain)]
    try {
      const { stdout } = await this.#expect(`list ${table} ${chain}`, this.#programs.command, args)
      const prefix = `-A ${chain} `
      const lines = stdout.split('\n').filter((line) => line.startsWith(prefix))
      return lines.map((line) => line.slice(prefix.length))
    } catch (error) {
      if (isIptablesError(error, 'not-found')) return undefined
      throw error
    }
  }

  /** Whether this kernel and this build of iptables take such a rule. Changes nothing. */
  async supports(table: Table, rule: Rule): Promise<boolean> {
    const scratch = 'IPTABLES-TS-PROBE'
    const batch = new Batch().chain(table, scratch).append(table, scratch, rule)
    try {
      await this.restore(batch, { test: true })
      return true
    } catch (error) {
      if (isIptablesError(error, 'unsupported') || isIptablesError(error, 'invalid')) return false
      throw error
    }
  }

  /** Throws IptablesError when the rules cannot even be read: no rights, or no table `nat`. */
  async check(): Promise<void> {
    const args = [...this.#wait, '-t', 'nat', '-S', 'POSTROUTING']
    await this.#expect('list nat POSTROUTING', this.#programs.command, args)
  }

  async #expect(
    action: string,
    file: string,
    args: readonly string[],
    stdin?: string,
  ): Promise<CommandOutput> {
    const timeoutMs = this.#timeoutMs
    const result = await this.#run(
      file,
      args,
      stdin === undefined ? { timeoutMs } : { stdin, timeoutMs },
    )
    if (result.code === 0) return result
    throw classifyFailure({
      action: `${file}: ${action}`,
      code: result.code,
      stderr: result.stderr,
      ...(stdin === undefined ? {} : { input: stdin }),
    })
  }
}
