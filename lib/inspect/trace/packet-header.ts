import { addressText } from '../../kernel/addresses.js'
import type { TracedPacket } from './events.js'

/** What tells one packet from another on its way through rules that rewrite it. */
export interface PacketHeader extends Omit<TracedPacket, 'inInterface' | 'outInterface'> {
  readonly id: string
}

const withPorts = new Set([6, 17, 132])

/** Reads IP and port numbers; undefined for what has none or is cut too short. */
export function packetHeader(bytes: Buffer): PacketHeader | undefined {
  const version = (bytes[0] ?? 0) >> 4
  if (version !== 4 && version !== 6) return undefined
  const isV4 = version === 4
  const length = isV4 ? ((bytes[0] ?? 0) & 15) * 4 : 40
  if (bytes.length < length + 8 || !withPorts.has(bytes[isV4 ? 9 : 6] ?? 0)) return undefined
  const family = isV4 ? 'IPv4' : 'IPv6'
  const source = addressText(family, bytes, isV4 ? 12 : 8)
  const destination = addressText(family, bytes, isV4 ? 16 : 24)
  const [sourcePort, destinationPort] = [bytes.readUInt16BE(length), bytes.readUInt16BE(length + 2)]
  // Destinations are rewritten on the way; sources only after the last rule.
  const number = isV4 ? bytes.readUInt16BE(4) : bytes.readUInt32BE(length + 4)
  return {
    ...{ source, destination, sourcePort, destinationPort },
    id: `${source} ${sourcePort} ${number}`,
  }
}
