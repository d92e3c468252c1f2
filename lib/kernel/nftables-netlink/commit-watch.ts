import { KernelError } from '../../errors.js'
import type { NetlinkChannel } from '../netlink/channel.js'
import { attributesOf, readString, type Message } from '../netlink/message-reader.js'
import { MessageWriter } from '../netlink/message-writer.js'
import { protocols } from '../netlink/protocol.js'
import { subscribe, type SubscriptionOptions } from '../netlink/subscription.js'
import type { TableRef } from '../nftables/model.js'
import { families, generationId, genericBytes, isTablesMessage, messages } from './protocol.js'

/** NFNLGRP_NFTABLES */
const group = 7
const everyMs = 500
const tableAttribute = 1
/** The numbers of this many own commits are kept. Events arrive within a look or two. */
const ownMax = 4096
/** The events of so many commands overflow a socket, and cost more than the transaction. */
const largeCommit = 1000

interface CommitWatchOptions {
  readonly tables: readonly TableRef[]
  /** Counts the transactions of the namespace, see NfTables. */
  readonly generation: () => number
  /** Somebody else's transaction touched one of the tables. */
  readonly onForeign: () => void
  /** Events were lost, so somebody else may have touched the tables. */
  readonly onUnclear: () => void
  readonly openPipe?: SubscriptionOptions['openPipe']
}

export interface CommitWatch {
  /** Runs a transaction of ours, of so many commands, and recognises its events as our own. */
  around<T>(commit: () => Promise<T>, commands: number): Promise<T>
  run(signal: AbortSignal): Promise<void>
}

/**
 * Tells foreign transactions from our own without listing anything. The kernel numbers transactions
 * (generations), and each event carries the lower half of its transaction's number. Our own numbers
 * are those that came up while we were committing.
 */
export function watchCommits(options: CommitWatchOptions): CommitWatch {
  const own = new Set<number>()
  // The newest generation about which everything is known.
  let known = options.generation()
  let reported = -1

  const onMessage = ({ type, payload }: Message) => {
    if (!isTablesMessage(type)) return
    if (type === messages.newGeneration) {
      known = Math.max(known, generationOf(payload))
      return
    }
    const id = payload.readUInt16BE(2)
    if (own.has(id) || id === reported || !concerns(payload, options.tables)) return
    reported = id
    options.onForeign()
  }

  /** Undefined while the kernel refuses to tell: rights may be taken away and given back. */
  const generation = () => {
    try {
      return options.generation()
    } catch {
      return undefined
    }
  }

  const subscription = subscribe(protocols.netfilter, {
    groups: [group],
    everyMs,
    onMessage,
    onOverrun: () => {
      // A large transaction of ours overflows the socket: harmless if nobody else committed.
      const now = generation()
      if (now !== known) options.onUnclear()
      known = now ?? known
    },
    ...(options.openPipe ? { openPipe: options.openPipe } : {}),
  })

  return {
    async around(commit, commands) {
      const before = options.generation()
      try {
        return await (commands < largeCommit ? commit() : subscription.deaf(commit))
      } finally {
        // A commit of others before this look makes another number. A later one is an event.
        const after = options.generation()
        if (after === before + 1) remember(own, after & 0xffff)
        else if (after !== before) options.onUnclear()
        // If others committed before us, their events are not read yet.
        if (before === known) known = after
      }
    },
    run: (signal) => subscription.run(signal),
  }
}

function remember(own: Set<number>, id: number): void {
  own.delete(id)
  own.add(id)
  if (own.size <= ownMax) return
  const [oldest] = own
  if (oldest !== undefined) own.delete(oldest)
}

function concerns(payload: Buffer, tables: readonly TableRef[]): boolean {
  const name = attributesOf(payload, genericBytes).get(tableAttribute)
  if (!name) return false
  const text = readString(name)
  return tables.some((table) => families[table.family] === payload[0] && table.name === text)
}

/** The number of transactions in this network namespace so far, ours and foreign. Lists nothing. */
export function readGeneration(channel: NetlinkChannel): number {
  const writer = new MessageWriter(32).message(messages.getGeneration, 0, (message) =>
    message.fixed(Uint8Array.of(0, 0, 0, 0)),
  )
  const [reply] = channel.request(writer, 'ask nf_tables for its generation')
  const id = reply && attributesOf(reply.payload, genericBytes).get(generationId)
  if (!id) throw new KernelError('unsupported', 'ask nf_tables for its generation: no answer')
  return id.readUInt32BE(0)
}

function generationOf(payload: Buffer): number {
  return attributesOf(payload, genericBytes).get(generationId)?.readUInt32BE() ?? -1
}
