import { setImmediate } from 'node:timers/promises'
import type { NetlinkChannel } from './channel.js'
import { KernelError } from '../../errors.js'
import type { NetlinkFailure } from './failure.js'
import { MessageWriter } from './message-writer.js'
import { flags } from './protocol.js'

/**
 * Few enough that all answers fit the socket's buffer, even if each change is refused with a text.
 */
const changesAtOnce = 128

interface Refused<T> {
  readonly change: T
  readonly failure: NetlinkFailure
}

/**
 * Makes changes in order, a message each, and tells which the kernel refused; the others are done.
 * The event loop gets its turn between batches. Throws if answers were lost, because then nobody
 * knows what was done.
 */
export async function changeInBatches<T>(
  channel: NetlinkChannel,
  changes: readonly T[],
  write: (writer: MessageWriter, change: T, messageFlags: number) => void,
): Promise<{ readonly refused: readonly Refused<T>[]; readonly bytes: number }> {
  const refused: Refused<T>[] = []
  const writer = new MessageWriter()
  let bytes = 0
  for (let start = 0; start < changes.length; start += changesAtOnce) {
    if (start > 0) await setImmediate()
    const batch = changes.slice(start, start + changesAtOnce)
    writer.reset()
    for (const [index, change] of batch.entries()) {
      // Errors are always sent; one acknowledgement at the end says that all was read.
      write(writer, change, index === batch.length - 1 ? flags.ack : 0)
    }
    bytes += writer.byteLength
    const { failures, acknowledged, overrun } = channel.transact(writer)
    if (overrun || (acknowledged === 0 && failures.size === 0)) {
      throw new KernelError('busy', `${batch.length} changes by netlink: answers were lost`)
    }
    for (const [index, failure] of failures) {
      const change = batch[index]
      if (change !== undefined) refused.push({ change, failure })
    }
  }
  return { refused, bytes }
}
