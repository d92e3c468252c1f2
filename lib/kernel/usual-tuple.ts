import { ipPart, protocolPart, tuplePart } from './conntrack-tuple.js'
import { aligned, isLittleEndian, nestedBit } from './netlink/protocol.js'
import type { IpFamily } from '../state/ip.js'

/** The layout of a tuple as kernels usually write it, so that most tuples need no search. */
export interface UsualTuple {
  readonly bytes: number
  readonly headers: readonly (readonly [at: number, header: number])[]
  readonly source: number
  readonly destination: number
  readonly protocol: number
  readonly sourcePort: number
  readonly destinationPort: number
}

export const usualTuples: Readonly<Record<IpFamily, UsualTuple>> = {
  IPv4: usualTuple(4, ipPart.IPv4),
  IPv6: usualTuple(16, ipPart.IPv6),
}

function usualTuple(addressBytes: number, ip: (typeof ipPart)[IpFamily]): UsualTuple {
  const headers: (readonly [number, number])[] = []
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
