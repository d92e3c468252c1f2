import type { KernelError } from '../errors.js'
import { addressBytes, protocolNumbers } from './addresses.js'
import { openChannel, type NetlinkChannel } from './netlink/channel.js'
import { kernelErrorOf, type NetlinkFailure } from './netlink/failure.js'
import { changeInBatches } from './netlink/in-batches.js'
import type { MessageWriter } from './netlink/message-writer.js'
import { protocols } from './netlink/protocol.js'

/** A member in the form of `ipset save`, such as `10.96.0.1,tcp:80`. */
export interface MemberChange {
  readonly do: 'add' | 'delete'
  readonly set: string
  readonly member: string
}

/** From linux/netfilter/ipset/ip_set.h. */
const subsystem = 6
const commands = { add: 9, delete: 10 } as const
const top = { protocol: 1, name: 2, data: 7 } as const
const part = { ip: 1, port: 4, protocol: 7, ip2: 20, prefix2: 21 } as const
const address = { IPv4: 1, IPv6: 2 } as const
/** The version that all kernels know which know sets by netlink. */
const version = 6
/** The bit in the type of an attribute that says: in network order. */
const networkOrder = 0x4000
const isFull = 'E4352'

/**
 * Adds and deletes members of sets that the kernel has, without a process. Sets are made and listed
 * by the program, see `IpSets`.
 */
export class IpSetMembers {
  readonly #channel: NetlinkChannel

  constructor(channel: NetlinkChannel = openChannel(protocols.netfilter)) {
    this.#channel = channel
  }

  /**
   * Makes the changes in order, and returns the bytes of their messages. What is there already, or
   * gone, is no failure. A change that is refused does not keep back the others.
   */
  async change(changes: readonly MemberChange[]): Promise<number> {
    const { refused, bytes } = await changeInBatches(this.#channel, changes, writeChange)
    const [first] = refused
    if (first) throw errorOf(first.change, first.failure)
    return bytes
  }

  close(): void {
    this.#channel.close()
  }
}

function errorOf(change: MemberChange, failure: NetlinkFailure): KernelError {
  const text = failure.code === isFull ? 'the set is full' : failure.text
  const action = `${change.do} member ${change.member} of ipset ${change.set}`
  return kernelErrorOf({ ...failure, text }, action)
}

function writeChange(writer: MessageWriter, change: MemberChange, ack: number): void {
  writer.message((subsystem << 8) | commands[change.do], ack, () => {
    writer.fixed(new Uint8Array(4)).u8(top.protocol, version).string(top.name, change.set)
    writer.nest(top.data, () => writeMember(writer, change.member))
  })
}

function writeMember(writer: MessageWriter, member: string): void {
  const [first = '', service, second] = member.split(',')
  if (/^\d+$/.test(first)) {
    writer.be16(networkOrder | part.port, Number(first))
    return
  }
  writeAddress(writer, part.ip, first)
  if (service === undefined) return
  const [protocol = '', port] = service.toUpperCase().split(':')
  if (!(protocol in protocolNumbers)) throw new RangeError(`ipset member ${member}: no protocol`)
  const number = protocolNumbers[protocol as keyof typeof protocolNumbers]
  writer.be16(networkOrder | part.port, Number(port)).u8(part.protocol, number)
  if (second === undefined) return
  const [network = '', prefix] = second.split('/')
  writeAddress(writer, part.ip2, network)
  if (prefix !== undefined) writer.u8(part.prefix2, Number(prefix))
}

function writeAddress(writer: MessageWriter, type: number, text: string): void {
  const bytes = addressBytes(text)
  if (!bytes) throw new RangeError(`ipset member ${JSON.stringify(text)}: no address`)
  const family = bytes.length === 4 ? 'IPv4' : 'IPv6'
  writer.nest(type, () => writer.bytes(networkOrder | address[family], bytes))
}
