import { putAddress } from '../../kernel/addresses.js'
import type { IpFamily } from '../../state/ip.js'
import { addressFactor, targetId, wordsOf } from './layout.js'
import type { SocketPlan } from './plan.js'

/** What a connected UDP socket asked for. */
export interface Asked {
  /** `addressNumber` of the address. */
  readonly address: number
  readonly port: number
}

/**
 * Finds the numbers of the target lists to which a plan leads what sockets ask for. Two addresses
 * may have one number, so there may be several. Only these ports are looked at.
 */
export function listsAsked(
  { family, frontends, nodeAddresses }: SocketPlan,
  ports: ReadonlySet<number>,
): (asked: Asked) => readonly number[] {
  const lists = new Map<string, readonly number[]>()
  for (const [first] of frontends.values()) {
    if (first?.protocol !== 'UDP' || !ports.has(first.port)) continue
    const where = first.address === undefined ? 'node' : addressNumber(family, first.address)
    const key = `${where} ${first.port}`
    lists.set(key, [...(lists.get(key) ?? []), targetId(first.targets)])
  }
  const own = new Set(nodeAddresses.map(({ address }) => addressNumber(family, address)))
  return ({ address, port }) => [
    ...(lists.get(`${address} ${port}`) ?? []),
    ...((own.has(address) && lists.get(`node ${port}`)) || []),
  ]
}

/** The number that programs compute, too. */
function addressNumber(family: IpFamily, text: string): number {
  const bytes = Buffer.alloc(4 * wordsOf(family))
  putAddress(bytes, 0, family, text)
  let number = 0
  for (let at = 0; at < bytes.length; at += 4) {
    number = (Math.imul(number, addressFactor) + bytes.readUInt32LE(at)) >>> 0
  }
  return number
}
