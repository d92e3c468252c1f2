import { hashOf } from '../../state/persistent-map.js'
import { addressText, putAddress } from '../../kernel/addresses.js'
import type { IpFamily } from '../../state/ip.js'

/**
 * The content of the maps, byte by byte. programs/ reads it in the kernel, tables.ts writes it.
 * Addresses and ports are in network order, everything else in the machine's (little-endian).
 */

/** How many 32-bit words an address has. */
export const wordsOf = (family: IpFamily): 1 | 4 => (family === 'IPv4' ? 1 : 4)

export const protocols = { TCP: 6, UDP: 17 } as const
export type SocketProtocol = keyof typeof protocols

/**
 * Entry of `services`: three words. The first tells where the endpoints are, and is replaced as a
 * whole: first place (24 bits), count (16), tag (16), flags (8). The second holds the seconds of
 * affinity and the id of the service, 32 bits each. In the third, programs count the turns that
 * were taken.
 */
export const serviceWords = 3
export const service = {
  first: { bits: 24 },
  count: { shift: 24, mask: 0xffff },
  tag: { shift: 40, mask: 0xffff },
  flags: { shift: 56 },
  affinitySeconds: 8,
  id: 12,
  turn: 16,
} as const
/** The flag for connections that are refused at once. */
export const refuses = 1
/** How an endpoint is chosen. */
export const drawFlags = { chance: 0, turn: 2, fewest: 4 } as const
export type DrawWord = keyof typeof drawFlags
export const mostBackends = 2 ** service.first.bits
export const mostEndpoints = service.count.mask

export interface ServiceWord {
  readonly first: number
  readonly count: number
  readonly tag: number
  readonly refuses: boolean
  readonly draw: DrawWord
}

/** With this word the programs leave a connection to the packet path: they neither send nor refuse it. */
export const noService: ServiceWord = {
  ...{ first: 0, count: 0, tag: 0 },
  ...{ refuses: false, draw: 'chance' },
}

export function serviceWord({ first, count, tag, refuses: refusal, draw }: ServiceWord): bigint {
  const flags = (refusal ? refuses : 0) | drawFlags[draw]
  return (
    BigInt(first) |
    (BigInt(count) << BigInt(service.count.shift)) |
    (BigInt(tag) << BigInt(service.tag.shift)) |
    (BigInt(flags) << BigInt(service.flags.shift))
  )
}

export function readServiceWord(word: bigint): ServiceWord {
  const field = (shift: number, mask: number) => Number((word >> BigInt(shift)) & BigInt(mask))
  const flags = field(service.flags.shift, 0xff)
  const is = (flag: number) => (flags & flag) !== 0
  return {
    first: field(0, mostBackends - 1),
    count: field(service.count.shift, service.count.mask),
    tag: field(service.tag.shift, service.tag.mask),
    refuses: is(refuses),
    draw: is(drawFlags.fewest) ? 'fewest' : is(drawFlags.turn) ? 'turn' : 'chance',
  }
}

export function serviceIdWord(id: number, affinitySeconds: number): bigint {
  return BigInt(affinitySeconds) | (BigInt(id) << 32n)
}

/** Entry of `backends`: address, port, and the tag of the block it belongs to. */
export function backendOf(family: IpFamily) {
  const port = family === 'IPv4' ? 4 : 16
  return { port, tag: port + 2, words: family === 'IPv4' ? 1 : 3 }
}

/** An endpoint as maps hold it: its address and port, and nothing else. */
export interface Target {
  readonly ip: string
  readonly port: number
}

/** Writes into memory of the caller, because there are many endpoints. */
export function writeBackend(
  bytes: Buffer,
  family: IpFamily,
  { ip, port }: Target,
  tag: number,
): void {
  const { port: portAt, tag: tagAt } = backendOf(family)
  putAddress(bytes, 0, family, ip)
  bytes.writeUInt16BE(port, portAt)
  bytes.writeUInt16LE(tag, tagAt)
}

export function readBackend(family: IpFamily, bytes: Buffer): Target & { readonly tag: number } {
  const { port, tag } = backendOf(family)
  return {
    ip: addressText(family, bytes),
    port: bytes.readUInt16BE(port),
    tag: bytes.readUInt16LE(tag),
  }
}

/** Key of `members`: service id, address, port, two unused bytes. */
export function memberKeyOf(family: IpFamily) {
  const port = 4 + wordsOf(family) * 4
  return { id: 0, address: 4, port, padding: port + 2, bytes: port + 4 }
}

/** Value of `members`: whether the endpoint gets new clients. */
export const memberValues = { keepsClients: 0, takesClients: 1 } as const

export function memberKey(family: IpFamily, id: number, { ip, port }: Target): Buffer {
  const layout = memberKeyOf(family)
  const key = Buffer.alloc(layout.bytes)
  key.writeUInt32LE(id, layout.id)
  putAddress(key, layout.address, family, ip)
  key.writeUInt16BE(port, layout.port)
  return key
}

export function readMemberKey(family: IpFamily, key: Buffer) {
  const { id, address, port } = memberKeyOf(family)
  const endpoint = { ip: addressText(family, key, address), port: key.readUInt16BE(port) }
  return { id: key.readUInt32LE(id), endpoint }
}

/** The endpoints of a list that `members` holds, each once, with their values. */
export function rememberedIn(list: {
  readonly isRemembered: boolean
  readonly endpoints: readonly Target[]
  readonly kept: readonly Target[]
}): ReadonlyMap<Target, number> {
  const all = new Map<Target, number>()
  if (!list.isRemembered) return all
  for (const each of list.endpoints) all.set(each, memberValues.takesClients)
  for (const each of list.kept) all.set(each, memberValues.keepsClients)
  return all
}

/** Key and value of `affinity`: which endpoint the clients of one network namespace have. */
export const affinityKey = { cookie: 0, id: 8, family: 12, bytes: 16 } as const
export const affinityValue = { usedAt: 0, address: 8, port: 24, bytes: 32 } as const

/** Key of `open`: an endpoint. An IPv4 address is followed by zeros. */
export const openKey = { address: 0, port: 16, family: 18, protocol: 19, bytes: 20 } as const
/** Value of `open`: how many counted connections are open at the endpoint. */
export const openBytes = 8

/** Where a socket wanted to go, and its endpoint. The bytes of the endpoint are a key of `open`. */
export const translation = {
  original: 0,
  backend: 16,
  backendPort: 16 + openKey.port,
  family: 16 + openKey.family,
  protocol: 16 + openKey.protocol,
  originalPort: 36,
  /** Not 0: connections to this Service are counted in `open`. */
  isCounted: 40,
  /** The number of the map that counts this connection now, or 0. */
  countedIn: 44,
  bytes: 48,
} as const
export const familyNumbers: Readonly<Record<IpFamily, number>> = { IPv4: 4, IPv6: 6 }

/**
 * Value of `udpSockets`: the endpoint of a connected socket, and what the socket asked for, as a port
 * and the number of an address. Port 0: an older release noted it. The key is the socket's cookie.
 */
export const udpSocket = {
  ...{ namespace: 0, id: 8, family: 12, address: 16, port: 32 },
  ...{ askedPort: 34, askedAddress: 36 },
  bytes: 40,
} as const
/** The number of an address: with each word it is multiplied by this, and the word is added. */
export const addressFactor = 0x01000193
export const socketCookieBytes = 8

/**
 * The last translations of a socket that is not connected, because it may send to many Services.
 */
export const datagrams = {
  next: 0,
  first: 8,
  count: 8,
  bytes: 8 + 8 * translation.bytes,
} as const

/**
 * Key of `statistics`: an endpoint of a target list, or without address and port the list itself.
 * If everything but the protocol is zero, the entry counts what has no room in the map.
 */
export const statisticsKey = {
  id: 0,
  port: 4,
  family: 6,
  protocol: 7,
  address: 8,
  bytes: 24,
} as const

/** Value of `statistics`: numbers of 64 bits, of each processor. */
export const statistics = {
  opened: 0,
  closed: 8,
  /** Connections that no endpoint took. */
  failed: 16,
  /** Calls without an endpoint to go to. */
  refused: 24,
  bytesToEndpoint: 32,
  bytesToClient: 40,
  retransmits: 48,
  /** The sum of smoothed round-trip times in microseconds, and how many were added. */
  roundTripTime: 56,
  roundTrips: 64,
  bytes: 72,
} as const
export type StatisticsField = Exclude<keyof typeof statistics, 'bytes'>

/** The endpoint in a key of `statistics`; undefined if the key is not about one endpoint. */
export function countedTarget(key: Buffer): Target | undefined {
  const number = key.readUInt8(statisticsKey.family)
  const family = number === familyNumbers.IPv4 ? 'IPv4' : 'IPv6'
  if (number !== familyNumbers[family]) return undefined
  const ip = addressText(family, key, statisticsKey.address)
  return { ip, port: key.readUInt16BE(statisticsKey.port) }
}

/** How many of the last refused calls are kept. */
export const keptRefusals = 256

/**
 * Entry of `refusals`: the number of the call, from 1 on, or 0 while the entry is written; then the
 * process and what it asked for. The first entry has only the number of all refused calls so far.
 */
export const refusal = {
  ...{ number: 0, id: 8, process: 12, address: 16, port: 32, protocol: 34, family: 35 },
  bytes: 40,
} as const

interface NotedRefusal extends Target {
  readonly id: number
  readonly process: number
  readonly protocol: SocketProtocol
}

/** The prefix `::ffff:0:0/96` in hexadecimal. */
const mappedPrefix = `${'0'.repeat(20)}ffff`

export function readRefusal(bytes: Buffer): NotedRefusal {
  const { address: at } = refusal
  const isIp4 = bytes.readUInt8(refusal.family) === familyNumbers.IPv4
  const isMapped = !isIp4 && bytes.toString('hex', at, at + 12) === mappedPrefix
  return {
    ip: addressText(isIp4 || isMapped ? 'IPv4' : 'IPv6', bytes, isMapped ? at + 12 : at),
    port: bytes.readUInt16BE(refusal.port),
    protocol: bytes.readUInt8(refusal.protocol) === protocols.TCP ? 'TCP' : 'UDP',
    id: bytes.readUInt32LE(refusal.id),
    process: bytes.readUInt32LE(refusal.process),
  }
}

/** How much of a connection the statistics contain already. The key of `statistics` comes first. */
export const counted = {
  stage: statisticsKey.bytes,
  retransmits: statisticsKey.bytes + 4,
  received: statisticsKey.bytes + 8,
  acknowledged: statisticsKey.bytes + 16,
  receivedWhenHalfClosed: statisticsKey.bytes + 24,
  bytes: statisticsKey.bytes + 32,
} as const
export const stages = { over: 0, connecting: 1, open: 2 } as const

/** A number as maps hold it, such as the place in an array. */
export function number32(value: number): Buffer {
  const bytes = Buffer.alloc(4)
  bytes.writeUInt32LE(value)
  return bytes
}

/**
 * The number of a target list in keys of maps that outlive the tables. If two lists have one number,
 * a client may stay with an endpoint of the other list, but only if that has the same address and port.
 */
export const targetId = (id: string): number => hashOf(id)
