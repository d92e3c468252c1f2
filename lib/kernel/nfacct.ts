import { ifThere, unless } from '../errors.js'
import { openChannel, type NetlinkChannel } from './netlink/channel.js'
import { attributesOf } from './netlink/message-reader.js'
import { flags, protocols } from './netlink/protocol.js'
import { MessageWriter } from './netlink/message-writer.js'

/** NFNL_SUBSYS_ACCT, with its messages in the lower byte of the type. */
const subsystem = 7 << 8
const messages = { create: subsystem, get: subsystem | 1, remove: subsystem | 3 } as const
const attributes = { name: 1, packets: 2 } as const

/** The nfacct objects of this network namespace: named counters that rules add to. */
export interface PacketAccounts {
  /** Creates the object; an existing one keeps its count. Throws where the kernel has no nfacct. */
  ensure(name: string): void
  /** Packets counted so far; undefined when there is no such object. */
  packets(name: string): bigint | undefined
  /** Removes the object, unless there is none or a rule still counts with it. */
  remove(name: string): void
  close(): void
}

export function openPacketAccounts(
  channel: NetlinkChannel = openChannel(protocols.netfilter),
): PacketAccounts {
  const request = (type: number, name: string, requestFlags: number, action: string) => {
    const writer = new MessageWriter(64).message(type, requestFlags, (message) =>
      message.fixed(Uint8Array.of(0, 0, 0, 0)).string(attributes.name, name),
    )
    return channel.request(writer, `${action} nfacct object ${name}`)
  }
  return {
    ensure(name) {
      const wanted = flags.create | flags.excl | flags.ack
      unless(['exists', 'busy'], () => request(messages.create, name, wanted, 'create'))
    },
    packets(name) {
      const reply = ifThere(() => request(messages.get, name, 0, 'read')[0])
      return reply && attributesOf(reply.payload, 4).get(attributes.packets)?.readBigUInt64BE(0)
    },
    remove(name) {
      unless(['not-found', 'busy'], () => request(messages.remove, name, flags.ack, 'remove'))
    },
    close: () => channel.close(),
  }
}
