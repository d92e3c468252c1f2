import { hostPort, type IpFamily } from '../../state/ip.js'
import {
  addressBytes,
  addressFamilies,
  addressText,
  protocolNames,
  protocolNumbers,
  type ProtocolName,
} from '../addresses.js'
import { genericHeader, genericHeaderBytes, hostBytes } from '../netlink/protocol.js'
import { attributesOf, readString, readU16, readU32, readU64 } from '../netlink/message-reader.js'
import type { MessageWriter } from '../netlink/message-writer.js'

/** Names a virtual server to the kernel. */
export interface ServerAddress {
  readonly family: IpFamily
  readonly protocol: ProtocolName
  readonly ip: string
  readonly port: number
}

/** What this program never sets, and another one has set: options of ipvsadm, only in listings. */
interface Altered {
  readonly altered?: string
}

export interface VirtualServer extends ServerAddress, Altered {
  readonly scheduler: string
  /** Two bits that some schedulers read: `mh` takes them for the fallback and the port. */
  readonly schedulerFlags: number
  /** A client keeps its real server this long; 0 for no affinity. */
  readonly persistenceSeconds: number
}

export interface RealServer extends Altered {
  readonly ip: string
  readonly port: number
  readonly weight: number
}

export interface ListedServer extends VirtualServer {
  readonly stats: TrafficStats
}

export interface ListedRealServer extends RealServer {
  readonly activeConnections: number
  readonly inactiveConnections: number
  readonly stats: TrafficStats
}

export type TrafficStats = Readonly<Record<keyof typeof statsAttribute, bigint>>

/**
 * The two bits as `mh` reads them: take another server when one is unavailable, and hash the
 * client's port, too.
 */
export const schedulerFlag = { fallback: 0x8, port: 0x10 } as const

export const commands = {
  newService: 1,
  setService: 2,
  deleteService: 3,
  getService: 4,
  newDestination: 5,
  setDestination: 6,
  deleteDestination: 7,
  getDestination: 8,
  setConfig: 12,
} as const

export const topAttribute = { service: 1, destination: 2, tcp: 4, tcpFin: 5, udp: 6 } as const

const serviceAttribute = {
  family: 1,
  protocol: 2,
  address: 3,
  port: 4,
  scheduler: 6,
  flags: 7,
  timeout: 8,
  netmask: 9,
  stats: 10,
  persistenceEngine: 11,
  stats64: 12,
} as const

const destinationAttribute = {
  address: 1,
  port: 2,
  forwarding: 3,
  weight: 4,
  upperThreshold: 5,
  lowerThreshold: 6,
  active: 7,
  inactive: 8,
  stats: 10,
  family: 11,
  stats64: 12,
} as const

const statsAttribute = { connections: 1, inPackets: 2, outPackets: 3, inBytes: 4, outBytes: 5 }

const persistentFlag = 0x1
const wholeAddress = { IPv4: 0xffff_ffff, IPv6: 128 } as const
const onePacketFlag = 0x4
/** The bits that we set or clear; the kernel keeps the others. */
const flagsMask = persistentFlag | onePacketFlag | schedulerFlag.fallback | schedulerFlag.port
/** Address translation, the only kind of forwarding here. */
const masquerade = 0
/** The kinds of forwarding as ipvsadm names them; the second is that of the kernel's own address. */
const forwardingOptions = ['-m', '-m', '-i', '-g'] as const
const forwardingMask = 0x7

export const ipvsHeader = (command: number): Uint8Array => genericHeader(command, 1)

/** `10.96.0.10:80/TCP`, unique in a family. */
export function serverText({ ip, port, protocol }: ServerAddress): string {
  return `${hostPort(ip, port)}/${protocol}`
}

/** What identifies a virtual server. */
export function writeServerAddress(writer: MessageWriter, server: ServerAddress): void {
  writer
    .u16(serviceAttribute.family, addressFamilies[server.family])
    .u16(serviceAttribute.protocol, protocolNumbers[server.protocol])
    .bytes(serviceAttribute.address, paddedAddress(server.ip))
    .be16(serviceAttribute.port, server.port)
}

export function writeServer(writer: MessageWriter, server: VirtualServer): void {
  writeServerAddress(writer, server)
  const persistent = server.persistenceSeconds > 0 ? persistentFlag : 0
  const flags = [persistent | server.schedulerFlags, flagsMask]
  writer
    .string(serviceAttribute.scheduler, server.scheduler)
    .bytes(serviceAttribute.flags, Buffer.concat(flags.map(hostBytes)))
    .u32(serviceAttribute.timeout, server.persistenceSeconds)
    // Affinity goes by single clients: all bits of the address count.
    .u32(serviceAttribute.netmask, wholeAddress[server.family])
}

export function writeRealServer(writer: MessageWriter, real: RealServer, family: IpFamily): void {
  writeRealServerAddress(writer, real, family)
  writer
    .u32(destinationAttribute.forwarding, masquerade)
    .u32(destinationAttribute.weight, real.weight)
    .u32(destinationAttribute.upperThreshold, 0)
    .u32(destinationAttribute.lowerThreshold, 0)
}

export function writeRealServerAddress(
  writer: MessageWriter,
  real: Omit<RealServer, 'weight'>,
  family: IpFamily,
): void {
  writer
    .bytes(destinationAttribute.address, paddedAddress(real.ip))
    .be16(destinationAttribute.port, real.port)
    .u16(destinationAttribute.family, addressFamilies[family])
}

/** Returns undefined for virtual servers by firewall mark or of other protocols; they are never ours. */
export function parseServer(payload: Buffer): ListedServer | undefined {
  const nested = attributesOf(payload, genericHeaderBytes).get(topAttribute.service)
  if (!nested) return undefined
  const read = attributesOf(nested)
  const address = read.get(serviceAttribute.address)
  const port = read.get(serviceAttribute.port)
  const scheduler = read.get(serviceAttribute.scheduler)
  const family = familyOfNumber(u16(read.get(serviceAttribute.family)))
  const protocol = protocolNames.get(u16(read.get(serviceAttribute.protocol)))
  if (!address || !port || !scheduler || !family || !protocol) return undefined
  const flags = u32(read.get(serviceAttribute.flags))
  return {
    family,
    protocol,
    ip: addressText(family, address),
    port: port.readUInt16BE(0),
    scheduler: readString(scheduler),
    schedulerFlags: flags & (schedulerFlag.fallback | schedulerFlag.port),
    persistenceSeconds: flags & persistentFlag ? u32(read.get(serviceAttribute.timeout)) : 0,
    ...alteredServer(family, flags, read),
    stats: parseStats(read.get(serviceAttribute.stats64), read.get(serviceAttribute.stats)),
  }
}

export function parseRealServer(family: IpFamily, payload: Buffer): ListedRealServer | undefined {
  const nested = attributesOf(payload, genericHeaderBytes).get(topAttribute.destination)
  if (!nested) return undefined
  const read = attributesOf(nested)
  const address = read.get(destinationAttribute.address)
  const port = read.get(destinationAttribute.port)
  if (!address || !port) return undefined
  // Kernels since 3.18 can mix families by tunnels. The server's family is the default.
  const own = read.get(destinationAttribute.family)
  if (own && familyOfNumber(u16(own)) !== family) return undefined
  return {
    ip: addressText(family, address),
    port: port.readUInt16BE(0),
    weight: u32(read.get(destinationAttribute.weight)),
    ...alteredRealServer(read),
    activeConnections: u32(read.get(destinationAttribute.active)),
    inactiveConnections: u32(read.get(destinationAttribute.inactive)),
    stats: parseStats(read.get(destinationAttribute.stats64), read.get(destinationAttribute.stats)),
  }
}

function alteredServer(
  family: IpFamily,
  flags: number,
  read: ReadonlyMap<number, Buffer>,
): Altered {
  const mask = read.get(serviceAttribute.netmask)
  const engine = read.get(serviceAttribute.persistenceEngine)
  return alteredTo([
    flags & onePacketFlag ? '-o' : '',
    mask && u32(mask) !== wholeAddress[family]
      ? `-M ${family === 'IPv4' ? addressText(family, mask) : u32(mask)}`
      : '',
    engine ? `--pe ${readString(engine)}` : '',
  ])
}

function alteredRealServer(read: ReadonlyMap<number, Buffer>): Altered {
  const forwarding = u32(read.get(destinationAttribute.forwarding)) & forwardingMask
  const upper = u32(read.get(destinationAttribute.upperThreshold))
  const lower = u32(read.get(destinationAttribute.lowerThreshold))
  const option = forwardingOptions[forwarding] ?? `forwarding ${forwarding}`
  const isOwn = option === '-m' && upper === 0 && lower === 0
  return alteredTo([
    isOwn ? '' : option,
    upper > 0 ? `-x ${upper}` : '',
    lower > 0 ? `-y ${lower}` : '',
  ])
}

function alteredTo(options: readonly string[]): Altered {
  const altered = options.filter((option) => option !== '').join(' ')
  return altered === '' ? {} : { altered }
}

/** Kernels before 4.1 count connections and packets in 32 bits, which wrap. */
function parseStats(wide: Buffer | undefined, narrow: Buffer | undefined): TrafficStats {
  const read = wide ? attributesOf(wide) : narrow ? attributesOf(narrow) : undefined
  const number = (type: number) => {
    const value = read?.get(type)
    if (!value) return 0n
    return value.length >= 8 ? readU64(value, 0) : BigInt(readU32(value, 0))
  }
  return {
    connections: number(statsAttribute.connections),
    inPackets: number(statsAttribute.inPackets),
    outPackets: number(statsAttribute.outPackets),
    inBytes: number(statsAttribute.inBytes),
    outBytes: number(statsAttribute.outBytes),
  }
}

/** The kernel's union of both kinds of address: 16 bytes, IPv4 in the first four. */
function paddedAddress(ip: string): Uint8Array {
  const bytes = addressBytes(ip) ?? Buffer.alloc(0)
  if (bytes.length === 16) return bytes
  const padded = Buffer.alloc(16)
  padded.set(bytes)
  return padded
}

function familyOfNumber(number: number): IpFamily | undefined {
  if (number === addressFamilies.IPv4) return 'IPv4'
  return number === addressFamilies.IPv6 ? 'IPv6' : undefined
}

const u16 = (value: Buffer | undefined): number => (value ? readU16(value, 0) : 0)
const u32 = (value: Buffer | undefined): number => (value ? readU32(value, 0) : 0)
