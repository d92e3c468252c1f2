import { bitsOf, formatIp, parseIp, type IpFamily } from '../state/ip.js'

/** Address families as the kernel numbers them. */
export const addressFamilies = { IPv4: 2, IPv6: 10 } as const

export const protocolNumbers = { TCP: 6, UDP: 17, SCTP: 132 } as const

export type ProtocolName = keyof typeof protocolNumbers

/** The 4 or 16 bytes of an address in network order; undefined for text that is none. */
export function addressBytes(text: string): Uint8Array | undefined {
  const ip = parseIp(text)
  if (!ip) return undefined
  // Planners need it in a browser, too, which has no Buffer.
  const bytes = new Uint8Array(bitsOf(ip.family) / 8)
  let rest = ip.value
  for (let at = bytes.length - 1; at >= 0; at--) {
    bytes[at] = Number(rest & 0xffn)
    rest >>= 8n
  }
  return bytes
}

/** The canonical text of an address of 4 or 16 bytes. */
export function addressText(family: IpFamily, bytes: Buffer, start = 0): string {
  if (family === 'IPv4') {
    return `${bytes[start]}.${bytes[start + 1]}.${bytes[start + 2]}.${bytes[start + 3]}`
  }
  return formatIp(family, BigInt(`0x${bytes.toString('hex', start, start + 16)}`))
}
