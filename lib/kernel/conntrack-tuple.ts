import { addressFamilies } from './addresses.js'
import type { IpFamily } from '../state/ip.js'
import { aligned, isLittleEndian, nestedBit } from './netlink/protocol.js'

/** The parts that all ctnetlink messages about a flow have in common. */

const subsystem = 1 << 8
export const flowMessage = { change: subsystem, get: subsystem | 1, delete: subsystem | 2 }
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
 * Bits about a flow: whether a packet has come back (IPS_SEEN_REPLY), whether it is kept in a full
 * table (IPS_ASSURED), and whether NAT changed its destination (IPS_DST_NAT). All are in the last
 * byte.
 */
export const flowStatus = {
  attribute: 3,
  isAnswered: 0x02,
  isAssured: 0x04,
  isTranslated: 0x20,
} as const

export function flowHeader(family: IpFamily): Uint8Array {
  return Uint8Array.of(addressFamilies[family], 0, 0, 0)
}

/** The layout of a tuple as kernels usually write it, so that most tuples need no search. */
export type UsualTuple = Readonly<ReturnType<typeof usualTuple>>

export const usualTuples: Readonly<Record<IpFamily, UsualTuple>> = {
  IPv4: usualTuple(4, ipPart.IPv4),
  IPv6: usualTuple(16, ipPart.IPv6),
}

function usualTuple(addressBytes: number, ip: (typeof ipPart)[IpFamily]) {
  const headers: (readonly [at: number, header: number])[] = []
  let at = 0
  const add = (type: number, valueBytes: number, isNest = false) => {
    const [length, bits] = [4 + valueBytes, type | (isNest ? nestedBit : 0)]
    headers.push([at, isLittleEndian ? (bits << 16) | length : (length << 16) | bits])
    at += isNest ? 4 : aligned(length)
    return isNest ? at : at - aligned(valueBytes)
  }
  const both = 2 * (4 + addressBytes)
  add(tuplePart.ip, both, true)
  const source = add(ip.source, addressBytes)
  const destination = add(ip.destination, addressBytes)
  add(tuplePart.protocol, 24, true)
  const protocol = add(protocolPart.number, 1)
  const sourcePort = add(protocolPart.sourcePort, 2)
  const destinationPort = add(protocolPart.destinationPort, 2)
  return { bytes: at, headers, source, destination, protocol, sourcePort, destinationPort }
}
