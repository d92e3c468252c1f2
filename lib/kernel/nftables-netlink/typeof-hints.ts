import type { KeyType, L4Protocol, NftFamily } from '../nftables/model.js'
import { userData, userDataTypes } from './protocol.js'
import { hostBytes } from '../netlink/protocol.js'

/**
 * The description of a `typeof` map in its user data, in numbers of nft. The kernel does not read
 * it; `nft` needs it to print the map, and to know how long the number in its key is.
 */
const kinds = { payload: 7, concatenation: 13, random: 23 } as const
const headers = { udp: 6, tcp: 8, sctp: 10, ip: 12, ip6: 13 } as const
const destinationAddress = { ip: 12, ip6: 9 } as const
const destinationPort = 2
const hint = { kind: 0, content: 1 } as const
const keyHint = 3
const dataHint = 4
const dataIntervalHint = 6

type Hint = readonly [type: number, value: Uint8Array]

export function targetMapHints(
  family: NftFamily,
  protocol: L4Protocol,
  key: readonly KeyType[],
): readonly Hint[] {
  const address = described(kinds.payload, numbers(headers[family], destinationAddress[family]))
  const port = described(kinds.payload, numbers(headers[protocol], destinationPort))
  // `numgen random mod 2`, with no offset.
  const number = described(kinds.random, numbers(1, 2, 0))
  return [
    [userDataTypes.setDataByteOrder, hostBytes(0)],
    [keyHint, key.length === 1 ? number : concatenated(address, port, number)],
    [dataHint, concatenated(address, port)],
    [dataIntervalHint, hostBytes(0)],
  ]
}

const described = (kind: number, content: Uint8Array) =>
  userData([hint.kind, hostBytes(kind)], [hint.content, content])

const concatenated = (...parts: readonly Uint8Array[]) =>
  described(kinds.concatenation, listed(parts))

const numbers = (...values: readonly number[]) => listed(values.map(hostBytes))

const listed = (values: readonly Uint8Array[]) =>
  userData(...values.map((value, index): Hint => [index, value]))
