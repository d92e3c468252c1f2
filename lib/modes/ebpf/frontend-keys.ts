import { putAddress } from '../../kernel/addresses.js'
import type { IpFamily } from '../../state/ip.js'
import { frontendKeyOf, frontendKinds, protocols, type FrontendKind } from './layout.js'
import type { Frontend, NodeAddress } from './plan.js'

/** The keys of the map `frontends`. */
export function frontendKey(
  family: IpFamily,
  { address, protocol, port }: Omit<Frontend, 'owner' | 'targets'>,
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
