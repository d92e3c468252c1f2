import { ifPossible, KernelError } from '../../errors.js'
import type { NetlinkChannel } from '../netlink/channel.js'
import { attributesOf, readString, type Message } from '../netlink/message-reader.js'
import { MessageWriter } from '../netlink/message-writer.js'
import { protocols } from '../netlink/protocol.js'
import { subscribe, type SubscriptionOptions } from '../netlink/subscription.js'
import type { TableRef } from '../nftables/model.js'
import {
  families,
  generationAttributes,
  genericBytes,
  isTablesMessage,
  messages,
} from './protocol.js'

/** NFNLGRP_NFTABLES */
const group = 7
const everyMs = 500
const tableAttribute = 1
/** The events of so many commands overflow a socket, and cost more than the transaction. */
const largeCommit = 1000

interface CommitWatchOptions {
  readonly tables: readonly TableRef[]
  /** The netlink port of the socket that writes our transactions. Their events carry it. */
  readonly port: number
  /** Counts the transactions of the namespace, see NfTables. */
  readonly generation: () => number
  /** Somebody else's transaction touched one of the tables; `who` names the process. */
  readonly onForeign: (who: string) => void
  /** Events were lost, so somebody else may have touched the tables. */
  readonly onUnclear: () => void
  readonly openPipe?: SubscriptionOptions['openPipe']
}

export interface CommitWatch {
  /** Runs a transaction of ours, of so many commands. */
  around<T>(commit: () => Promise<T>, commands: number): Promise<T>
  run(signal: AbortSignal): Promise<void>
}

/**
 * Tells foreign transactions from our own without listing anything: each event carries the port of
 * the socket that wrote the transaction. The kernel counts transactions, so where events were lost,
 * the count tells whether one of them was foreign.
 */
export function watchCommits(options: CommitWatchOptions): CommitWatch {
  // As many transactions are ours, or were seen.
  let accounted = options.generation()
  const others = transactionsOfOthers(options)

  const onMessage = ({ type, port, payload }: Message) => {
    if (!isTablesMessage(type) || port === options.port) return
    if (type === messages.newGeneration) {
      accounted++
      others.ended(payload)
    } else others.changed(payload)
  }

  const subscription = subscribe(protocols.netfilter, {
    groups: [group],
    everyMs,
    onMessage,
    onEmpty: () => others.allRead(),
    onOverrun: () => {
      // Transactions of ours overflow the socket: harmless if nobody else committed.
      // The kernel refuses to tell while rights are taken away. They may be given back.
      const now = ifPossible(options.generation)
      if (now !== accounted) options.onUnclear()
      accounted = now ?? accounted
    },
    ...(options.openPipe ? { openPipe: options.openPipe } : {}),
  })

  return {
    async around(commit, commands) {
      if (commands < largeCommit) {
        const result = await commit()
        if (commands > 0) accounted++
        return result
      }
      const before = options.generation()
      let ours = 0
      try {
        const result = await subscription.deaf(commit)
        ours = 1
        return result
      } finally {
        const commits = options.generation() - before
        accounted += commits
        // One of others had no event either.
        if (commits > ours) options.onUnclear()
      }
    },
    run: (signal) => subscription.run(signal),
  }
}

/** Tells each transaction that touched one of the tables once. */
function transactionsOfOthers({
  tables,
  onForeign,
}: Pick<CommitWatchOptions, 'tables' | 'onForeign'>) {
  let reported = -1
  /** One whose end was not read yet. */
  let open: number | undefined
  const report = (who: string) => {
    reported = open ?? reported
    open = undefined
    onForeign(who)
  }
  return {
    changed: (payload: Buffer) => {
      const id = transactionOf(payload)
      if (id !== reported && concerns(payload, tables)) open = id
    },
    ended: (payload: Buffer) => {
      if (open === transactionOf(payload)) report(writerOf(payload))
    },
    allRead: () => {
      // The end was lost, or is not there yet.
      if (open !== undefined) report('somebody else')
    },
  }
}

function concerns(payload: Buffer, tables: readonly TableRef[]): boolean {
  const name = attributesOf(payload, genericBytes).get(tableAttribute)
  if (!name) return false
  const text = readString(name)
  return tables.some((table) => families[table.family] === payload[0] && table.name === text)
}

function transactionOf(payload: Buffer): number {
  return payload.readUInt16BE(2)
}

/** The process that wrote a transaction, as the node numbers it. The kernel tells it at the end. */
function writerOf(payload: Buffer): string {
  const { process, program } = generationAttributes
  const attributes = attributesOf(payload, genericBytes)
  const number = attributes.get(process)?.readUInt32BE(0)
  const name = attributes.get(program)
  return number === undefined || !name ? 'somebody else' : `process ${number} (${readString(name)})`
}

/**
 * The number of transactions in this network namespace so far, ours and foreign, and the port of the
 * socket on which the channel sends its transactions. Lists nothing.
 */
export function readGeneration(channel: NetlinkChannel): {
  readonly id: number
  readonly port: number
} {
  const writer = new MessageWriter(32).message(messages.getGeneration, 0, (message) =>
    message.fixed(Uint8Array.of(0, 0, 0, 0)),
  )
  const [reply] = channel.request(writer, 'ask nf_tables for its generation')
  const id = reply && attributesOf(reply.payload, genericBytes).get(generationAttributes.id)
  if (!id) throw new KernelError('unsupported', 'ask nf_tables for its generation: no answer')
  return { id: id.readUInt32BE(0), port: reply.port }
}
