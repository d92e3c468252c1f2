import { addressBytes, addressFamilies } from '../addresses.js'
import { formatIp } from '../../state/ip.js'

/** Bytes of `struct sockaddr_in6`, the longer of the two. */
export const maxAddressLength = 28

export interface SocketAddress {
  readonly ip: string
  readonly port: number
}

/** The bytes of `struct sockaddr_in` or `sockaddr_in6`; throws RangeError for a wrong address. */
export function encodeAddress({ ip, port }: SocketAddress): Uint8Array {
  const address = addressBytes(ip)
  if (!address || !Number.isInteger(port) || port < 0 || port > 65535) {
    throw new RangeError(`encode socket address: ${ip} port ${port} is not one`)
  }
  const isIpv4 = address.length === 4
  const bytes = new Uint8Array(isIpv4 ? 16 : maxAddressLength)
  const view = new DataView(bytes.buffer)
  view.setUint16(0, isIpv4 ? addressFamilies.IPv4 : addressFamilies.IPv6, true)
  view.setUint16(2, port)
  bytes.set(address, isIpv4 ? 4 : 8)
  return bytes
}

/** The address family of an encoded address, as the kernel numbers it. */
export function familyOf(encoded: Uint8Array): number {
  return encoded.length === maxAddressLength ? addressFamilies.IPv6 : addressFamilies.IPv4
}

/** Reads an address that the kernel wrote at `offset`; undefined if it is neither IPv4 nor IPv6. */
export function decodeAddress(view: DataView, offset: number): SocketAddress | undefined {
  const family = view.getUint16(offset, true)
  const port = view.getUint16(offset + 2)
  if (family === addressFamilies.IPv4) {
    const ip = [4, 5, 6, 7].map((at) => view.getUint8(offset + at)).join('.')
    return { ip, port }
  }
  if (family !== addressFamilies.IPv6) return undefined
  const value = (view.getBigUint64(offset + 8) << 64n) | view.getBigUint64(offset + 16)
  return { ip: formatIp('IPv6', value), port }
}

/**
 * A key for the sender. For IPv4 it is one number of 48 bits, address and port, because numbers
 * are much cheaper than text. For IPv6 it is the raw bytes as text.
 */
export function addressKey(bytes: Buffer, offset: number): number | string {
  if (bytes[offset] === addressFamilies.IPv4) return bytes.readUIntBE(offset + 2, 6)
  return bytes.toString('latin1', offset + 2, offset + maxAddressLength)
}
