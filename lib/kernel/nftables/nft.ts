import { KernelError, type KernelErrorKind } from '../../errors.js'
import { timeoutAfter } from '../iptables/command.js'
import { runCommand, type CommandOutput, type Run } from '../command.js'
import type { NftSet, TableRef, Transaction } from './model.js'
import type { ClientReader, Remembered } from './reader.js'
import { rememberedIn } from './remembered-json.js'
import { transactionText } from './text.js'

/** Gives transactions to the kernel. Two classes do so: with the `nft` program and over netlink. */
export interface RulesetWriter {
  /** The writer's name in logs. */
  readonly name: string
  /** Applies all commands, or throws a KernelError and applies none. Returns the bytes sent. */
  commit(transaction: Transaction): Promise<number>
  /** Asks whether the kernel would take the transaction, without keeping it. */
  check(transaction: Transaction): Promise<void>
}

/** The `nft` program. One call is one process and one atomic transaction (NF21). */
export class Nft implements RulesetWriter, ClientReader {
  readonly name = 'nft'
  readonly #run: Run
  #timeoutMs = 120_000

  constructor(run: Run = runCommand) {
    this.#run = run
  }

  async commit(transaction: Transaction): Promise<number> {
    const text = transactionText(transaction)
    if (text === '') return 0
    await this.#checked(['-f', '-'], 'apply nftables transaction', text)
    return Buffer.byteLength(text)
  }

  async check(transaction: Transaction): Promise<void> {
    await this.#checked(['-c', '-f', '-'], 'try nftables transaction', transactionText(transaction))
  }

  async version(): Promise<string> {
    const { stdout } = await this.#checked(['--version'], 'ask nft for its version')
    return stdout
  }

  async remembered(
    { family, name }: TableRef,
    sets: readonly NftSet[],
  ): Promise<ReadonlyMap<string, readonly Remembered[]>> {
    const listing = async (...what: readonly string[]) => {
      const argv = ['-j', 'list', ...what, family, name]
      return (await this.#checked(argv, `list sets of nftables table ${name}`)).stdout
    }
    try {
      const listed = await listing('sets', 'table')
      // Before 1.0.6 nft lists elements only with the whole table.
      const hasElements = listed.includes('"elem":')
      return rememberedIn(hasElements ? listed : await listing('table'), family, sets)
    } catch (error) {
      if (error instanceof KernelError && error.kind === 'not-found') return new Map()
      throw error
    }
  }

  async #checked(args: readonly string[], action: string, stdin?: string): Promise<CommandOutput> {
    const timeoutMs = this.#timeoutMs
    const options = { timeoutMs, ...(stdin === undefined ? {} : { stdin }) }
    const result = await this.#run('nft', args, options).catch((error: unknown) => {
      if (error instanceof KernelError && error.kind === 'timed-out')
        this.#timeoutMs = timeoutAfter(timeoutMs)
      throw error
    })
    if (result.code === 0) return result
    const said = firstLine(result.stderr) || `nft ended with ${result.code} and said nothing`
    throw new KernelError(kindOf(result.stderr), `${action}: ${said}`, {
      detail: result.stderr.slice(0, 4096),
    })
  }
}

/**
 * The rules in the output of `nft list chain`: one text for each, also for a rule of several lines.
 */
export function listedRules(listing: string): readonly string[] {
  const lines = listing.split('\n').map((line) => line.trim())
  const start = lines.findIndex((line) => line.startsWith('chain '))
  const body = lines
    .slice(start + 1, lines.indexOf('}', start))
    .filter((line) => !/^(type .* hook |comment ")/.test(line))
  const rules: string[] = []
  let open = 0
  for (const line of body) {
    if (open > 0) rules.push(`${rules.pop() ?? ''} ${line}`)
    else rules.push(line)
    open += (line.match(/\{/g)?.length ?? 0) - (line.match(/\}/g)?.length ?? 0)
  }
  return rules
}

/** Removes the table. A missing table is no error. */
export async function dropTable(writer: RulesetWriter, { family, name }: TableRef): Promise<void> {
  const table = { family, name, comment: '' }
  await writer.commit({ table, commands: [{ do: 'add-table' }, { do: 'delete-table' }] })
}

/** Finds the kind of a failure in the messages of nft and the kernel. */
function kindOf(stderr: string): KernelErrorKind {
  // Before 1.0.5 nft prints nothing when it may not read the ruleset.
  if (stderr.includes('Operation not permitted') || stderr.trim() === '') return 'denied'
  if (stderr.includes('No such file or directory')) return 'not-found'
  if (stderr.includes('File exists')) return 'exists'
  if (stderr.includes('resource busy')) return 'busy'
  if (stderr.includes('not supported')) return 'unsupported'
  if (stderr.includes('syntax error') || stderr.includes('Invalid argument')) return 'invalid'
  return 'failed'
}

const firstLine = (text: string) => text.trim().split('\n', 1)[0] ?? ''
