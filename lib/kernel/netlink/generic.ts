import type { NetlinkChannel } from './channel.js'
import { attributesOf, readU16 } from './message-reader.js'
import { MessageWriter } from './message-writer.js'
import { flags } from './protocol.js'

const controlFamily = 16
const getFamily = 3
const familyId = 1
const familyName = 2

/** The header of generic netlink, between the header of netlink and the attributes. */
export function genericHeader(command: number, version: number): Uint8Array {
  return Uint8Array.of(command, version, 0, 0)
}

export const genericHeaderBytes = 4

/**
 * The message type of a generic netlink family. The request also makes the kernel load the module
 * of the family, if it may. A KernelError of kind `not-found` means that there is no such family.
 */
export function resolveFamily(channel: NetlinkChannel, name: string): number {
  const writer = new MessageWriter(64).message(controlFamily, flags.ack, (message) => {
    message.fixed(genericHeader(getFamily, 1)).string(familyName, name)
  })
  const [reply] = channel.request(writer, `look up generic netlink family ${name}`)
  const id = reply && attributesOf(reply.payload, genericHeaderBytes).get(familyId)
  return id ? readU16(id, 0) : 0
}
