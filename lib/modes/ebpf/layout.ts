import { addressText, putAddress } from '../../kernel/addresses.js'
import type { IpFamily } from '../../state/ip.js'

/**
 * What the maps hold, byte by byte: programs/ reads it in the kernel, tables.ts writes it. Addresses
 * and ports are in network order, everything else in the machine's (little-endian).
 */

/** 32-bit words of an address. */
export const wordsOf = (family: IpFamily): 1 | 4 => (family === 'IPv4' ? 1 : 4)

/** What a frontend's key stands for. */
export const frontendKinds = { address: 0, nodePort: 1, nodeAddress: 2 } as const
export type FrontendKind = keyof typeof frontendKinds

export const protocols = { TCP: 6, UDP: 17 } as const
export type SocketProtocol = keyof typeof protocols

/** Key of `frontends`: address, port, protocol, kind. */
export function frontendKeyOf(family: IpFamily) {
  const port = wordsOf(family) * 4
  return { port, protocol: port + 2, kind: port + 3, bytes: port + 4 }
}

/** Value of `frontends`: the number of a service, or for a node address these bits. */
export const frontendBytes = 4
/** A loopback address: it means this node only to sockets of the node's own network. */
export const hostOnly = 1

/**
 * Entry of `services`: three words. The first tells where the endpoints are, and is replaced as a
 * whole: first place (24 bits), count (16), tag (16), flags (8). The second holds the seconds of
 * affinity and the id of the service, 32 bits each. The third is the programs' own: how many turns
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
/** Connections are refused at once. */
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

/** An endpoint as it stands in maps: where it is, and nothing else. */
export interface Target {
  readonly ip: string
  readonly port: number
}

/** Into memory of the caller, because there are many of them. */
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

/** Key of `members`: service id, address, port, two bytes of nothing. */
export function memberKeyOf(family: IpFamily) {
  const port = 4 + wordsOf(family) * 4
  return { id: 0, address: 4, port, padding: port + 2, bytes: port + 4 }
}

/** Value of `members`: whether new clients may come. */
export const memberValues = { keepsClients: 0, takesClients: 1 } as const

export function memberKey(family: IpFamily, id: number, { ip, port }: Target): Buffer {
  const layout = memberKeyOf(family)
  const key = Buffer.alloc(layout.bytes)
  key.writeUInt32LE(id, layout.id)
  putAddress(key, layout.address, family, ip)
  key.writeUInt16BE(port, layout.port)
  return key
}

/** Which endpoint the clients of one network namespace have. */
export const affinityKey = { cookie: 0, id: 8, family: 12, bytes: 16 } as const
export const affinityValue = { usedAt: 0, address: 8, port: 24, bytes: 32 } as const

/** Key of `open`: an endpoint. An IPv4 address is followed by zeros. */
export const openKey = { address: 0, port: 16, family: 18, protocol: 19, bytes: 20 } as const
/** Value of `open`: how many connections are open there, of those that are counted. */
export const openBytes = 8

/** Where a socket wanted to go, and where it was sent instead. The second is a key of `open`. */
export const translation = {
  original: 0,
  backend: 16,
  backendPort: 16 + openKey.port,
  family: 16 + openKey.family,
  protocol: 16 + openKey.protocol,
  originalPort: 36,
  /** Not 0: connections to this Service are counted in `open`. */
  isCounted: 40,
  /** The number of the map in which this one is counted now, or 0. */
  countedIn: 44,
  bytes: 48,
} as const
export const familyNumbers: Readonly<Record<IpFamily, number>> = { IPv4: 4, IPv6: 6 }

/** Value of `udpSockets`, whose key is the cookie of a connected socket: whom it was sent to. */
export const udpSocket = {
  namespace: 0,
  id: 8,
  family: 12,
  address: 16,
  port: 32,
  bytes: 40,
} as const
export const socketCookieBytes = 8

/** A socket that is not connected sends to several Services; so many are told apart. */
export const datagrams = {
  next: 0,
  first: 8,
  count: 8,
  bytes: 8 + 8 * translation.bytes,
} as const

/**
 * Key of `statistics`: an endpoint of a target list; without address and port the list itself. A key
 * of which only the protocol is not zero counts what the map has no more room for.
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
  /** No endpoint answered. */
  failed: 16,
  /** There was no endpoint. */
  refused: 24,
  bytesToEndpoint: 32,
  bytesToClient: 40,
  retransmits: 48,
  /** Of the smoothed round-trip times, in microseconds, and how many were added. */
  roundTripTime: 56,
  roundTrips: 64,
  bytes: 72,
} as const
export type StatisticsField = Exclude<keyof typeof statistics, 'bytes'>

/** Undefined for what is about no single endpoint. */
export function countedTarget(key: Buffer): Target | undefined {
  const number = key.readUInt8(statisticsKey.family)
  const family = number === familyNumbers.IPv4 ? 'IPv4' : 'IPv6'
  if (number !== familyNumbers[family]) return undefined
  const ip = addressText(family, key, statisticsKey.address)
  return { ip, port: key.readUInt16BE(statisticsKey.port) }
}

/** So many of the calls that were refused last are told apart. */
export const keptRefusals = 256

/**
 * Entry of `refusals`: the number of the call, from 1 on, or 0 while it is written; then who was
 * refused what. The first entry has only the number of all so far.
 */
export const refusal = {
  ...{ number: 0, id: 8, process: 12, address: 16, port: 32, protocol: 34, family: 35 },
  bytes: 40,
} as const

export interface NotedRefusal extends Target {
  readonly id: number
  readonly process: number
  readonly protocol: SocketProtocol
}

/** Of `::ffff:0:0/96`. */
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

/** How much of a connection the statistics contain already. It begins with the key. */
export const counted = {
  stage: statisticsKey.bytes,
  retransmits: statisticsKey.bytes + 4,
  received: statisticsKey.bytes + 8,
  acknowledged: statisticsKey.bytes + 16,
  receivedWhenHalfClosed: statisticsKey.bytes + 24,
  bytes: statisticsKey.bytes + 32,
} as const
export const stages = { over: 0, connecting: 1, open: 2 } as const

/** A number as it stands in maps, such as the place in an array. */
export function number32(value: number): Buffer {
  const bytes = Buffer.alloc(4)
  bytes.writeUInt32LE(value)
  return bytes
}
