import { putAddress } from '../../kernel/addresses.js'
import type { IpFamily } from '../../state/ip.js'
import { protocols, wordsOf } from './layout.js'
import type { Frontend, NodeAddress } from './plan.js'

/** The map `frontends`, byte by byte. layout.ts describes the other maps. */

/** What a key of `frontends` means. */
export const frontendKinds = { address: 0, nodePort: 1, nodeAddress: 2 } as const
export type FrontendKind = keyof typeof frontendKinds

/** Key of `frontends`: address, port, protocol, kind. */
export function frontendKeyOf(family: IpFamily) {
  const port = wordsOf(family) * 4
  return { port, protocol: port + 2, kind: port + 3, bytes: port + 4 }
}

/** Value of `frontends`: the number of a service, or for a node address bits; then more bits. */
export const frontendValue = { first: 0, more: 4, bytes: 8 } as const
/** A loopback address. It means this node only for sockets in the node's own network namespace. */
export const hostOnly = 1
/** More bits: a client may have this address and port, so a datagram to it may be an answer. */
export const mayBeClient = 1

export const frontendEntry = (slot: number, { isExternal }: Pick<Frontend, 'isExternal'>) =>
  valueOf(slot, isExternal ? mayBeClient : 0)

export const nodeAddressEntry = (address: Pick<NodeAddress, 'hostOnly'>) =>
  valueOf(address.hostOnly ? hostOnly : 0, 0)

function valueOf(first: number, more: number): Buffer {
  const value = Buffer.alloc(frontendValue.bytes)
  value.writeUInt32LE(first, frontendValue.first)
  value.writeUInt32LE(more, frontendValue.more)
  return value
}

export function frontendKey(
  family: IpFamily,
  { address, protocol, port }: Pick<Frontend, 'address' | 'protocol' | 'port'>,
): Buffer {
  const kind = address === undefined ? 'nodePort' : 'address'
  return keyOf(family, kind, { address, protocol: protocols[protocol], port })
}

export function nodeAddressKey(
  family: IpFamily,
  { address }: Pick<NodeAddress, 'address'>,
): Buffer {
  return keyOf(family, 'nodeAddress', { address, protocol: 0, port: 0 })
}

function keyOf(
  family: IpFamily,
  kind: FrontendKind,
  where: { readonly address: string | undefined; readonly protocol: number; readonly port: number },
): Buffer {
  const layout = frontendKeyOf(family)
  const key = Buffer.alloc(layout.bytes)
  if (where.address !== undefined) putAddress(key, 0, family, where.address)
  key.writeUInt16BE(where.port, layout.port)
  key.writeUInt8(where.protocol, layout.protocol)
  key.writeUInt8(frontendKinds[kind], layout.kind)
  return key
}
