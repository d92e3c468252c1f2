import { randomUUID } from 'node:crypto'
import { KernelError } from '../../errors.js'
import { openChannel, type NetlinkChannel } from '../netlink/channel.js'
import { kernelErrorOf } from '../netlink/failure.js'
import { protocols } from '../netlink/protocol.js'
import type { Command, Transaction } from '../nftables/model.js'
import type { RulesetWriter } from '../nftables/nft.js'
import { transactionText } from '../nftables/text.js'
import { readGeneration } from './commit-watch.js'
import { TableReader } from './table-reader.js'
import { uniqueSetNames, writeTransaction, type NameSet } from './transaction-writer.js'

/** nf_tables by netlink: what `nft` does, without starting a program. */
export class NfTables implements RulesetWriter {
  readonly name = 'netlink'
  readonly reader: TableReader
  readonly #channel: NetlinkChannel
  readonly #nameSet: NameSet

  /** `token` must differ from that of every other process that wrote to the same tables. */
  constructor(channel: NetlinkChannel, token: string) {
    this.#channel = channel
    this.reader = new TableReader(channel)
    this.#nameSet = uniqueSetNames(token)
  }

  async commit(transaction: Transaction): Promise<number> {
    return this.#send(transaction, 'apply', true)
  }

  /** The kernel tries a batch that has no end mark, and takes it back. */
  async check(transaction: Transaction): Promise<void> {
    await this.#send(transaction, 'try', false)
  }

  /**
   * The number of transactions in this network namespace, ours and foreign (NF19 without listing).
   */
  generation(): number {
    return readGeneration(this.#channel).id
  }

  /** What tells the events of our transactions from those of others. */
  port(): number {
    return readGeneration(this.#channel).port
  }

  close(): void {
    this.#channel.close()
  }

  async #send(transaction: Transaction, verb: string, ends: boolean): Promise<number> {
    const { length } = transaction.commands
    if (length === 0) return 0
    const { messages: written, origins } = writeTransaction(transaction, this.#nameSet, ends)
    const answer =
      length < longWork
        ? this.#channel.transact(written)
        : await this.#channel.transactAside(written)
    const [failed] = [...answer.failures].sort(([a], [b]) => a - b)
    if (failed) {
      const [index, failure] = failed
      const origin = origins[index]
      const cause = kernelErrorOf(failure, `${verb} nftables transaction`)
      throw new KernelError(cause.kind, `${cause.message}${describe(transaction, origin)}`, {
        cause,
        detail: failure.code,
      })
    }
    if (answer.acknowledged === 0) {
      const kind = answer.overrun ? 'busy' : 'failed'
      throw new KernelError(
        kind,
        `${verb} nftables transaction: the kernel did not say how it went`,
      )
    }
    return written.byteLength
  }
}

/**
 * So many commands take the kernel some 60 ms. Their events are not heard (`largeCommit` of
 * commit-watch.ts), so it does not matter that they come from another socket.
 */
const longWork = 5000

/** Opens nf_tables in this network namespace; throws a KernelError where koffi or the kernel cannot. */
export function openNfTables(): NfTables {
  let channel: NetlinkChannel
  try {
    channel = openChannel(protocols.netfilter, { worksAside: true })
  } catch (cause) {
    if (cause instanceof KernelError) throw cause
    throw new KernelError('unsupported', 'open netlink: koffi does not load here', { cause })
  }
  const nfTables = new NfTables(channel, randomUUID().slice(0, 8))
  try {
    nfTables.generation()
  } catch (error) {
    nfTables.close()
    throw error
  }
  return nfTables
}

/** The command that the kernel refused, as nft would write it. */
function describe({ table }: Transaction, command: Command | undefined): string {
  if (!command) return ''
  return `, at: ${transactionText({ table, commands: [command] }).trim()}`
}
