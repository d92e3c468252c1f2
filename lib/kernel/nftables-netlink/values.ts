import { KernelError } from '../../errors.js'
import { parseIp } from '../../state/ip.js'
import type { L4Protocol, NftFamily } from '../nftables/model.js'
import { isLittleEndian } from '../netlink/protocol.js'

/** Values as the kernel holds them in keys and data: network byte order, padded to 4 bytes. */

const protocolNumbers: Readonly<Record<L4Protocol, number>> = { tcp: 6, udp: 17, sctp: 132 }

export function addressLength(family: NftFamily): 4 | 16 {
  return family === 'ip' ? 4 : 16
}

export function writeAddress(into: Buffer, at: number, family: NftFamily, text: string): void {
  if (family === 'ip') {
    let octet = 0
    let index = 0
    for (let place = 0; place < text.length; place++) {
      const code = text.charCodeAt(place)
      if (code === 46) {
        into[at + index++] = octet
        octet = 0
      } else octet = octet * 10 + code - 48
    }
    into[at + index] = octet
    if (index === 3) return
  } else {
    const ip = parseIp(text)
    if (ip?.family === 'IPv6') {
      writeNumber(into, at, 16, ip.value)
      return
    }
  }
  throw new KernelError('invalid', `write nftables rules: ${JSON.stringify(text)} is no address`)
}

/** The lowest `length` bytes of a number, highest first. */
function writeNumber(into: Buffer, at: number, length: number, value: bigint): void {
  let rest = value
  for (let index = length - 1; index >= 0; index--) {
    into[at + index] = Number(rest & 0xffn)
    rest >>= 8n
  }
}

export function numberBytes(length: number, value: bigint): Buffer {
  const bytes = zeros(length)
  writeNumber(bytes, 0, length, value)
  return bytes
}

export function addressBytes(family: NftFamily, text: string): Buffer {
  const bytes = zeros(addressLength(family))
  writeAddress(bytes, 0, family, text)
  return bytes
}

export function protocolNumber(name: string): number {
  if (name === 'tcp' || name === 'udp' || name === 'sctp') return protocolNumbers[name]
  throw new KernelError('invalid', `write nftables rules: ${JSON.stringify(name)} is no protocol`)
}

export function protocolName(number: number): string {
  const known = Object.entries(protocolNumbers).find(([, value]) => value === number)
  return known?.[0] ?? String(number)
}

/** Marks and states have the byte order of this machine, not of the network. */
export function hostBytes(value: number): Buffer {
  const bytes = zeros(4)
  if (isLittleEndian) bytes.writeUInt32LE(value >>> 0)
  else bytes.writeUInt32BE(value >>> 0)
  return bytes
}

/** Takes memory of Node's pool. A separate allocation for a few bytes makes ten times the garbage. */
export function zeros(length: number): Buffer {
  return Buffer.allocUnsafe(length).fill(0)
}
