import { addressFamilies } from './addresses.js'
import { forEachAttribute } from './netlink/message-reader.js'
import type { IpFamily } from '../state/ip.js'

/** The parts that all ctnetlink messages about a flow have in common. */

const subsystem = 1 << 8
export const flowMessage = { get: subsystem | 1, delete: subsystem | 2 }
/** The two tuples of a flow: of the client's packets, and of the answers. */
export const flowTuple = { original: 1, reply: 2 }
export const tuplePart = { ip: 1, protocol: 2 }
export const protocolPart = { number: 1, sourcePort: 2, destinationPort: 3 }
export const ipPart = {
  IPv4: { source: 1, destination: 2 },
  IPv6: { source: 3, destination: 4 },
} as const

export const flowHeaderBytes = 4
/**
 * Bits about a flow: whether a packet has come back (IPS_SEEN_REPLY), and whether NAT changed its
 * destination (IPS_DST_NAT). Both are in the last byte.
 */
export const flowStatus = { attribute: 3, isAnswered: 0x02, isTranslated: 0x20 } as const

export function flowHeader(family: IpFamily): Uint8Array {
  return Uint8Array.of(addressFamilies[family], 0, 0, 0)
}

/** One end of a tuple: the offset of its address in the payload, and its port. */
export interface TupleEnd {
  at: number | undefined
  port: number | undefined
}

export interface Tuple {
  protocol: number | undefined
  readonly source: TupleEnd
  readonly destination: TupleEnd
}

/** Does not read the addresses, because most flows are dropped for their protocol. */
export function readTuple(family: IpFamily, payload: Buffer, start: number, end: number): Tuple {
  const source: TupleEnd = { at: undefined, port: undefined }
  const destination: TupleEnd = { at: undefined, port: undefined }
  const tuple: Tuple = { protocol: undefined, source, destination }
  const visitIp = (type: number, from: number) => {
    if (type === ipPart[family].source) source.at = from
    else if (type === ipPart[family].destination) destination.at = from
  }
  const visitProtocol = (type: number, from: number) => {
    if (type === protocolPart.number) tuple.protocol = payload[from]
    else if (type === protocolPart.sourcePort) source.port = payload.readUInt16BE(from)
    else if (type === protocolPart.destinationPort) destination.port = payload.readUInt16BE(from)
  }
  const visit = (type: number, from: number, to: number) => {
    if (type === tuplePart.ip) forEachAttribute(payload, from, visitIp, to)
    else if (type === tuplePart.protocol) forEachAttribute(payload, from, visitProtocol, to)
  }
  forEachAttribute(payload, start, visit, end)
  return tuple
}
