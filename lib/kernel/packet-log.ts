import koffi from 'koffi'
import { failureFromAck, kernelErrorOf } from './netlink/failure.js'
import { attributesOf, forEachMessage, readString } from './netlink/message-reader.js'
import { MessageWriter } from './netlink/message-writer.js'
import { controlTypes, flags, protocols } from './netlink/protocol.js'
import { openSocket, type NetlinkPipe } from './netlink/socket.js'

/** A packet that a rule or the kernel's tracing has logged. */
export interface LoggedPacket {
  /** The text of the logger, such as `TRACE: nat:KUBE-SERVICES:rule:3 `. */
  readonly prefix: string
  /** The names of interfaces; empty where there is none. */
  readonly inInterface: string
  readonly outInterface: string
  /** The packet from its IP header on, as it was when it was logged. */
  readonly bytes: Buffer
}

export interface PacketLog {
  /** The packets that came since the last call. */
  read(): readonly LoggedPacket[]
  /** How often packets were lost for lack of room, since the last call. */
  takeOverruns(): number
  close(): void
}

/** From linux/netfilter/nfnetlink_log.h. */
const subsystem = 4 << 8
const messages = { packet: subsystem | 0, config: subsystem | 1 } as const
const configure = { command: 1, mode: 2, timeout: 4, threshold: 5 } as const
const bind = 1
const copyPacket = 2
const attribute = { inInterface: 4, outInterface: 5, payload: 9, prefix: 10 } as const
const headerBytes = 4
/** IP and transport headers with all their options. */
const copiedBytes = 160

/**
 * Reads the packets that this network namespace logs to a group of nfnetlink_log. A group has one
 * listener; the kernel refuses others as `denied`.
 */
export function openPacketLog(group: number): PacketLog {
  const socket = openSocket(protocols.netfilter, { receiveBufferBytes: 1 << 20 })
  const header = Uint8Array.of(0, 0, group >> 8, group & 0xff)
  const mode = Buffer.alloc(6)
  mode.writeUInt32BE(copiedBytes, 0)
  mode[4] = copyPacket
  const request = (write: (writer: MessageWriter) => void) => {
    const writer = new MessageWriter(128).message(messages.config, flags.ack, (message) =>
      write(message.fixed(header)),
    )
    socket.send(writer.finish(1))
    for (let got = socket.receive(); got.kind !== 'nothing'; got = socket.receive()) {
      if (got.kind !== 'datagram') continue
      forEachMessage(got.data, ({ type, flags: bits, payload }) => {
        const failure = type === controlTypes.error ? failureFromAck(payload, bits) : undefined
        if (failure) throw kernelErrorOf(failure, `listen to packets logged to group ${group}`)
      })
    }
  }
  try {
    request((writer) => writer.u8(configure.command, bind))
    request((writer) => {
      writer.bytes(configure.mode, mode)
      // The kernel sends each packet at once, instead of collecting packets for a second.
      writer.be32(configure.timeout, 1)
      writer.be32(configure.threshold, 1)
    })
  } catch (error) {
    socket.close()
    throw error
  }
  return readerOf(socket)
}

function readerOf(socket: NetlinkPipe): PacketLog {
  const nameOf = interfaceNames()
  let overruns = 0
  return {
    takeOverruns: () => {
      const count = overruns
      overruns = 0
      return count
    },
    read: () => {
      const packets: LoggedPacket[] = []
      for (let got = socket.receive(); got.kind !== 'nothing'; got = socket.receive()) {
        if (got.kind === 'overrun') overruns++
        if (got.kind !== 'datagram') continue
        forEachMessage(got.data, ({ type, payload }) => {
          if (type === messages.packet) packets.push(readPacket(payload, nameOf))
        })
      }
      return packets
    },
    close: () => socket.close(),
  }
}

function readPacket(payload: Buffer, nameOf: (index: number) => string): LoggedPacket {
  const attributes = attributesOf(payload, headerBytes)
  const name = (type: number) => {
    const index = attributes.get(type)
    return index ? nameOf(index.readUInt32BE(0)) : ''
  }
  return {
    prefix: readString(attributes.get(attribute.prefix) ?? Buffer.alloc(0)),
    inInterface: name(attribute.inInterface),
    outInterface: name(attribute.outInterface),
    bytes: Buffer.from(attributes.get(attribute.payload) ?? Buffer.alloc(0)),
  }
}

const nameBytes = 16

function interfaceNames(): (index: number) => string {
  const find = koffi
    .load(null)
    .func('void *if_indextoname(uint32_t index, _Out_ uint8_t *name)') as (
    index: number,
    name: Buffer,
  ) => unknown
  return (index) => {
    const name = Buffer.alloc(nameBytes)
    return find(index, name) === null ? '' : readString(name)
  }
}
