import { addressText } from '../addresses.js'
import { checkedPort, safeComment } from '../nftables/identifiers.js'
import type { DnatTarget, Element, NftFamily, NftSet, Prefix, Verdict } from '../nftables/model.js'
import { attributesOf, forEachAttribute, readString, readU32 } from '../netlink/message-reader.js'
import type { MessageWriter } from '../netlink/message-writer.js'
import { writeVerdict } from './expressions.js'
import { targetMapHints } from './typeof-hints.js'
import {
  byteOrders,
  commentBytes,
  concatenatedType,
  dataTypes,
  datum,
  elementAttributes,
  elementListAttributes,
  genericBytes,
  intervalEnd,
  listItem,
  setAttributes,
  setFlags,
  userData,
  userDataTypes,
  verdictDataType,
} from './protocol.js'
import { hostBytes, zeros } from '../netlink/protocol.js'
import {
  addressLength,
  ipFamilyOf,
  numberBytes,
  protocolName,
  protocolNumber,
  writeAddress,
} from './values.js'

/** A set that belongs to one statement of one rule. */
export type AnonymousSet =
  | { readonly kind: 'verdicts'; readonly of: readonly Verdict[] }
  | { readonly kind: 'targets'; readonly of: readonly DnatTarget[] }
  | { readonly kind: 'prefixes'; readonly of: readonly Prefix[] }

/** Writes one element as an item of a list. */
export type WriteItem = (message: MessageWriter) => void

export function writeSet(message: MessageWriter, family: NftFamily, set: NftSet): void {
  const isAddress = set.key[0] === 'address' && set.key.length === 1
  const hints = [
    [userDataTypes.setKeyByteOrder, hostBytes(isAddress ? byteOrders.network : 0)] as const,
    ...(set.protocol ? targetMapHints(family, set.protocol, set.key) : []),
    ...(set.comment === undefined
      ? []
      : [[userDataTypes.setComment, commentBytes(safeComment(set.comment))] as const]),
  ]
  const flags =
    (set.holds === 'keys' ? 0 : setFlags.map) |
    (set.timeoutSeconds === undefined ? 0 : setFlags.timeout | setFlags.evaluated)
  message.be32(setAttributes.flags, flags)
  message.be32(setAttributes.keyType, concatenatedType(set.key.map((key) => typeOf(family, key))))
  message.be32(setAttributes.keyLength, keyLength(family, set))
  writeDataType(message, family, set.holds)
  if (set.timeoutSeconds !== undefined) {
    message.be64(setAttributes.timeout, BigInt(Math.floor(set.timeoutSeconds)) * 1000n)
  }
  message.bytes(setAttributes.userData, userData(...hints))
}

export function elementItem(family: NftFamily, element: Element, whole: boolean): WriteItem {
  return (message) =>
    message.nest(listItem, (item) => {
      item.nest(elementAttributes.key, (key) => key.bytes(datum.value, keyBytes(family, element)))
      const { verdict, target, expiresMs, comment } = element
      if (!whole) return
      if (expiresMs !== undefined) {
        item.be64(elementAttributes.expiration, BigInt(Math.ceil(expiresMs)))
      }
      if (verdict) item.nest(elementAttributes.data, (data) => writeVerdict(data, verdict))
      if (target) {
        const bytes = targetBytes(family, target)
        item.nest(elementAttributes.data, (data) => data.bytes(datum.value, bytes))
      }
      if (comment !== undefined) {
        const text = commentBytes(safeComment(comment))
        item.bytes(elementAttributes.userData, userData([userDataTypes.comment, text]))
      }
    })
}

const lengths = { inet_proto: 1, inet_service: 2, number: 4 } as const

/** Parts of a concatenation fill whole registers of 4 bytes; a single part has its own length. */
function keyLength(family: NftFamily, { key }: NftSet): number {
  const [first] = key
  if (key.length === 1 && first && first !== 'address') return lengths[first]
  return key.reduce((sum, type) => sum + (type === 'address' ? addressLength(family) : 4), 0)
}

export function keyBytes(family: NftFamily, { set, key }: Pick<Element, 'set' | 'key'>): Buffer {
  const bytes = zeros(keyLength(family, set))
  let at = 0
  let part = 0
  for (const type of set.key) {
    const value = key[part++] ?? ''
    if (type === 'address') writeAddress(bytes, at, family, String(value))
    else if (type === 'inet_service') bytes.writeUInt16BE(checkedPort(Number(value)), at)
    else if (type === 'number') bytes.set(hostBytes(Number(value)), at)
    else bytes[at] = protocolNumber(String(value))
    at += type === 'address' ? addressLength(family) : 4
  }
  return bytes
}

/**
 * The inverse of {@link keyBytes}: a key as `nft` prints it. An element for all other keys has none,
 * and a foreign set of this name may have keys of another type.
 */
export function keyText(family: NftFamily, set: NftSet, bytes: Buffer): string {
  if (bytes.length === 0) return '*'
  if (bytes.length !== keyLength(family, set)) return `0x${bytes.toString('hex')}`
  const parts: string[] = []
  let at = 0
  for (const type of set.key) {
    const length = type === 'address' ? addressLength(family) : 4
    if (type === 'address') parts.push(addressText(ipFamilyOf(family), bytes, at))
    else if (type === 'inet_service') parts.push(String(bytes.readUInt16BE(at)))
    else if (type === 'number') parts.push(String(readU32(bytes, at)))
    else parts.push(protocolName(bytes[at] ?? 0))
    at += length
  }
  return parts.join(' . ')
}

export function writeAnonymousSet(
  message: MessageWriter,
  family: NftFamily,
  set: AnonymousSet,
  size: number,
): void {
  const isMap = set.kind !== 'prefixes'
  const flags = setFlags.anonymous | setFlags.constant | (isMap ? setFlags.map : setFlags.interval)
  message.be32(setAttributes.flags, flags)
  message.be32(setAttributes.keyType, isMap ? dataTypes.integer : typeOf(family, 'address'))
  message.be32(setAttributes.keyLength, isMap ? 4 : addressLength(family))
  writeDataType(message, family, set.kind)
  message.nest(setAttributes.description, (description) => description.be32(1, size))
  const order = hostBytes(isMap ? byteOrders.host : byteOrders.network)
  const merges = isMap ? [] : [[userDataTypes.setMergeElements, hostBytes(1)] as const]
  message.bytes(setAttributes.userData, userData([userDataTypes.setKeyByteOrder, order], ...merges))
}

export function anonymousItems(family: NftFamily, set: AnonymousSet): readonly WriteItem[] {
  switch (set.kind) {
    case 'prefixes':
      return prefixItems(family, set.of)
    case 'verdicts':
      return set.of.map((verdict, index) =>
        numberedItem(index, (data) => writeVerdict(data, verdict)),
      )
    case 'targets':
      return set.of.map((target, index) =>
        numberedItem(index, (data) => data.bytes(datum.value, targetBytes(family, target))),
      )
  }
}

function writeDataType(
  message: MessageWriter,
  family: NftFamily,
  holds: NftSet['holds'] | AnonymousSet['kind'],
): void {
  if (holds === 'verdicts') {
    message.be32(setAttributes.dataType, verdictDataType).be32(setAttributes.dataLength, 0)
  } else if (holds === 'targets') {
    const types = [typeOf(family, 'address'), dataTypes.inet_service]
    message.be32(setAttributes.dataType, concatenatedType(types))
    message.be32(setAttributes.dataLength, addressLength(family) + 4)
  }
}

/** An address and a port side by side, as a map holds them. */
export function targetBytes(family: NftFamily, { ip, port }: DnatTarget): Buffer {
  const bytes = zeros(addressLength(family) + 4)
  writeAddress(bytes, 0, family, ip)
  bytes.writeUInt16BE(checkedPort(port), addressLength(family))
  return bytes
}

function numberedItem(index: number, value: WriteItem): WriteItem {
  return (message) =>
    message.nest(listItem, (item) => {
      item.nest(elementAttributes.key, (key) => key.bytes(datum.value, hostBytes(index)))
      item.nest(elementAttributes.data, value)
    })
}

/**
 * The elements of an interval set are the starts of ranges and, with a flag, the starts of gaps.
 */
function prefixItems(family: NftFamily, prefixes: readonly Prefix[]): readonly WriteItem[] {
  const length = addressLength(family)
  const end = 1n << BigInt(length * 8)
  const edges: { at: bigint; isEnd: boolean }[] = [{ at: 0n, isEnd: true }]
  for (const { network, prefix } of prefixes) {
    // A range that begins where another ended continues it.
    if (edges.at(-1)?.at === network) edges.pop()
    else edges.push({ at: network, isEnd: false })
    if (edges.length === 0) edges.push({ at: 0n, isEnd: false })
    const after = network + (1n << BigInt(length * 8 - prefix))
    if (after < end) edges.push({ at: after, isEnd: true })
  }
  const isOpen = edges.at(-1)?.isEnd === false
  return edges.map(({ at, isEnd }, index) => (message) => {
    message.nest(listItem, (item) => {
      if (isEnd) item.be32(elementAttributes.flags, intervalEnd)
      item.nest(elementAttributes.key, (key) => key.bytes(datum.value, numberBytes(length, at)))
      // nft marks the range that has no end, to print it as such.
      if (isOpen && index === edges.length - 1) {
        item.bytes(elementAttributes.userData, userData([userDataTypes.elementFlags, hostBytes(1)]))
      }
    })
  })
}

export interface ListedElement {
  /** The key as a text, with one character for each byte. */
  readonly key: string
  readonly verdict: { readonly code: number; readonly chain: string } | undefined
  readonly target: Buffer | undefined
  readonly expiresMs: number
  /** The start of a gap in an interval set. */
  readonly isEnd: boolean
}

const copyOf = (bytes: Buffer | undefined) => bytes && Buffer.from(bytes)

/** The elements of a set in a message that lists or writes them. */
export function elementsIn(payload: Buffer): readonly ListedElement[] {
  const items: ListedElement[] = []
  const list = attributesOf(payload, genericBytes).get(elementListAttributes.elements)
  if (!list) return items
  forEachAttribute(list, 0, (_, start, end) => {
    const attributes = attributesOf(list.subarray(start, end))
    const key = attributesOf(attributes.get(elementAttributes.key) ?? Buffer.alloc(0))
    const data = attributesOf(attributes.get(elementAttributes.data) ?? Buffer.alloc(0))
    const verdict = data.get(datum.verdict)
    items.push({
      key: key.get(datum.value)?.toString('latin1') ?? '',
      verdict: verdict && verdictOf(verdict),
      // A copy: the next receive writes over the message.
      target: copyOf(data.get(datum.value)),
      expiresMs: Number(attributes.get(elementAttributes.expiration)?.readBigUInt64BE() ?? 0n),
      isEnd: ((attributes.get(elementAttributes.flags)?.readUInt32BE() ?? 0) & intervalEnd) !== 0,
    })
  })
  return items
}

function verdictOf(bytes: Buffer): { code: number; chain: string } {
  const attributes = attributesOf(bytes)
  const chain = attributes.get(datum.verdictChain)
  return {
    code: attributes.get(datum.verdictCode)?.readInt32BE() ?? 0,
    chain: chain ? readString(chain) : '',
  }
}

function typeOf(family: NftFamily, type: NftSet['key'][number]): number {
  if (type === 'number') return dataTypes.integer
  if (type !== 'address') return dataTypes[type]
  return family === 'ip' ? dataTypes.ipv4_addr : dataTypes.ipv6_addr
}
