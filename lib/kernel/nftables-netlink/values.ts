import { KernelError } from '../../errors.js'
import type { IpFamily } from '../../state/ip.js'
import { protocolNames, protocolNumbers, putAddress } from '../addresses.js'
import type { NftFamily } from '../nftables/model.js'
import { zeros } from '../netlink/protocol.js'

/** Values as the kernel holds them in keys and data: network byte order, padded to 4 bytes. */

export function addressLength(family: NftFamily): 4 | 16 {
  return family === 'ip' ? 4 : 16
}

export const ipFamilyOf = (family: NftFamily): IpFamily => (family === 'ip' ? 'IPv4' : 'IPv6')

export function writeAddress(into: Buffer, at: number, family: NftFamily, text: string): void {
  if (putAddress(into, at, ipFamilyOf(family), text)) return
  throw new KernelError('invalid', `write nftables rules: ${JSON.stringify(text)} is no address`)
}

/** The lowest `length` bytes of a number, highest first. */
export function numberBytes(length: number, value: bigint): Buffer {
  const bytes = zeros(length)
  for (let index = length - 1, rest = value; index >= 0; index--, rest >>= 8n) {
    bytes[index] = Number(rest & 0xffn)
  }
  return bytes
}

export function addressBytes(family: NftFamily, text: string): Buffer {
  const bytes = zeros(addressLength(family))
  writeAddress(bytes, 0, family, text)
  return bytes
}

export function protocolNumber(name: string): number {
  if (name === 'tcp') return protocolNumbers.TCP
  if (name === 'udp') return protocolNumbers.UDP
  if (name === 'sctp') return protocolNumbers.SCTP
  throw new KernelError('invalid', `write nftables rules: ${JSON.stringify(name)} is no protocol`)
}

export function protocolName(number: number): string {
  return protocolNames.get(number)?.toLowerCase() ?? String(number)
}
