import { KernelError } from '../../errors.js'
import type { NetlinkChannel } from '../netlink/channel.js'
import { attributesOf } from '../netlink/message-reader.js'
import { MessageWriter } from '../netlink/message-writer.js'
import { generationId, messages } from './protocol.js'

/** Counts the transactions of this network namespace, everybody's. Lists nothing. */
export function readGeneration(channel: NetlinkChannel): number {
  const writer = new MessageWriter(32).message(messages.getGeneration, 0, (message) =>
    message.fixed(Uint8Array.of(0, 0, 0, 0)),
  )
  const [reply] = channel.request(writer, 'ask nf_tables for its generation')
  const id = reply && attributesOf(reply.payload, 4).get(generationId)
  if (!id) throw new KernelError('unsupported', 'ask nf_tables for its generation: no answer')
  return id.readUInt32BE(0)
}
