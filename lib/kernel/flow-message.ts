import { addressFamilies, addressText, protocolNames, type ProtocolName } from './addresses.js'
import {
  flowHeaderBytes,
  flowTuple,
  ipPart,
  protocolPart,
  tuplePart,
  usualTuples,
  type UsualTuple,
} from './conntrack-tuple.js'
import { aligned, isLittleEndian } from './netlink/protocol.js'
import { hostPort, type IpFamily } from '../state/ip.js'
import type { SocketAddress } from './sockets/socket-address.js'

/** Attributes of a flow, from linux/netfilter/nfnetlink_conntrack.h. */
const attribute = {
  ...flowTuple,
  protocolState: 4,
  originalCounters: 9,
  replyCounters: 10,
  id: 12,
  timestamp: 20,
}
const counter = { packets: 1, bytes: 2 }
const time = { start: 1 }
const tcpPart = { nested: 1, state: 1 }
const typeMask = 0x3fff
/** The first state after the last packet, from enum tcp_conntrack. */
const timeWait = 7

/** A set of numbers of both directions. */
export interface FlowCounters {
  bytesToEndpoint: number
  bytesToClient: number
  packetsToEndpoint: number
  packetsToClient: number
}

/** One tracked connection, as the client sees it and as the endpoint sees it. */
export interface TrackedFlow {
  readonly protocol: ProtocolName
  readonly source: SocketAddress
  readonly destination: SocketAddress
  /** The endpoint after DNAT, else the destination. */
  readonly answeredBy: SocketAddress
  /** The client, or an address of this node after masquerading. */
  readonly answeredTo: SocketAddress
  /** Both directions; undefined unless the kernel counts (`net.netfilter.nf_conntrack_acct`). */
  readonly bytes: { readonly toEndpoint: number; readonly toClient: number } | undefined
}

/**
 * One message of the kernel about a tracked connection. The same object reads message after message
 * and takes no memory: ten thousand connections in a second make twenty thousand messages. Texts
 * and keys are made only when they are asked for, and only before the next `read`.
 */
export class FlowMessage implements FlowCounters {
  family: IpFamily = 'IPv4'
  protocol = 0
  id = 0
  /** When the kernel first saw the connection, in ms since 1970; 0 if the kernel notes no time. */
  startedAt = 0
  hasCounters = false
  bytesToEndpoint = 0
  bytesToClient = 0
  packetsToEndpoint = 0
  packetsToClient = 0
  #buffer: Buffer = Buffer.alloc(0)
  /**
   * The memory of `#buffer` as words of 32 bits, and the place of `#buffer` in it. The header of an
   * attribute is one word.
   */
  #words = new Int32Array(this.#buffer.buffer)
  #offset = 0
  readonly #original = { source: 0, sourcePort: 0, destination: 0, destinationPort: 0 }
  readonly #reply = { source: 0, sourcePort: 0, destination: 0, destinationPort: 0 }
  /** 0 for other protocols than TCP. */
  #tcpState = 0

  /** Reads what follows the netlink header. Returns whether it is a flow of a Service's protocol. */
  read(buffer: Buffer, start: number, end: number): boolean {
    if (!this.#look(buffer, start))
      return this.read(Buffer.from(buffer.subarray(start, end)), 0, end - start)
    this.family = buffer[start] === addressFamilies.IPv6 ? 'IPv6' : 'IPv4'
    this.protocol = this.id = this.#tcpState = this.startedAt = 0
    this.hasCounters = false
    this.bytesToEndpoint = this.bytesToClient = 0
    this.packetsToEndpoint = this.packetsToClient = 0
    this.#original.destination = this.#reply.source = 0
    for (let at = start + flowHeaderBytes; at + 4 <= end;) {
      const header = this.#header(at)
      const length = lengthIn(header)
      if (length < 4 || at + length > end) break
      this.#attribute(typeIn(header), at + 4, at + length)
      at += aligned(length)
    }
    return (
      this.#original.destination > 0 && this.#reply.source > 0 && protocolNames.has(this.protocol)
    )
  }

  /** Returns false where the message does not begin at a word of its memory. */
  #look(buffer: Buffer, start: number): boolean {
    // Asking a buffer for its memory is a call, and most messages come in the same buffer.
    if (this.#buffer !== buffer) {
      const { buffer: memory, byteOffset } = buffer
      this.#buffer = buffer
      this.#offset = byteOffset
      this.#words = new Int32Array(memory, 0, memory.byteLength >> 2)
    }
    return ((this.#offset + start) & 3) === 0
  }

  #header(at: number): number {
    return this.#words[(this.#offset + at) >> 2] ?? 0
  }

  get protocolName(): ProtocolName {
    return protocolNames.get(this.protocol) ?? 'TCP'
  }

  /** Whether the connection may still carry something. */
  get isOpen(): boolean {
    return this.#tcpState < timeWait
  }

  get destinationPort(): number {
    return this.#original.destinationPort
  }

  /** The address that the client sent to, as {@link addressKey} makes it. */
  get destinationKey(): string | number {
    return addressKey(this.family, this.#buffer, this.#original.destination)
  }

  /** The endpoint that answers, after NAT. The key is unique in a family. */
  get endpointKey(): string | number {
    const key = addressKey(this.family, this.#buffer, this.#reply.source)
    return typeof key === 'number'
      ? key * 65_536 + this.#reply.sourcePort
      : `${key}${this.#reply.sourcePort}`
  }

  get endpoint(): string {
    return this.#text(this.#reply.source, this.#reply.sourcePort)
  }

  get client(): string {
    return this.#text(this.#original.source, this.#original.sourcePort)
  }

  get destination(): string {
    return this.#text(this.#original.destination, this.#original.destinationPort)
  }

  /** Whether an endpoint answers. Else a program of the node has the port, such as a node port. */
  get isTranslated(): boolean {
    if (this.#reply.sourcePort !== this.#original.destinationPort) return true
    return addressKey(this.family, this.#buffer, this.#reply.source) !== this.destinationKey
  }

  /** The connection as a value that stays when the next message is read. */
  tracked(): TrackedFlow {
    return {
      protocol: this.protocolName,
      source: this.#end(this.#original.source, this.#original.sourcePort),
      destination: this.#end(this.#original.destination, this.#original.destinationPort),
      answeredBy: this.#end(this.#reply.source, this.#reply.sourcePort),
      answeredTo: this.#end(this.#reply.destination, this.#reply.destinationPort),
      bytes: this.hasCounters
        ? { toEndpoint: this.bytesToEndpoint, toClient: this.bytesToClient }
        : undefined,
    }
  }

  #end(at: number, port: number): SocketAddress {
    return { ip: addressText(this.family, this.#buffer, at), port }
  }

  #text(at: number, port: number): string {
    return hostPort(addressText(this.family, this.#buffer, at), port)
  }

  #attribute(type: number, at: number, end: number): void {
    switch (type) {
      case attribute.original:
        this.#tuple(this.#original, at, end)
        break
      case attribute.reply:
        this.#tuple(this.#reply, at, end)
        break
      case attribute.id:
        this.id = this.#buffer.readUInt32BE(at)
        break
      case attribute.originalCounters:
        this.hasCounters = true
        this.packetsToEndpoint = this.#big(counter.packets, at, end)
        this.bytesToEndpoint = this.#big(counter.bytes, at, end)
        break
      case attribute.replyCounters:
        this.packetsToClient = this.#big(counter.packets, at, end)
        this.bytesToClient = this.#big(counter.bytes, at, end)
        break
      case attribute.timestamp:
        this.startedAt = this.#big(time.start, at, end) / 1e6
        break
      case attribute.protocolState: {
        const tcp = this.#find(tcpPart.nested, at, end)
        const state = tcp < 0 ? -1 : this.#find(tcpPart.state, tcp, end)
        if (state >= 0) this.#tcpState = this.#buffer[state] ?? 0
      }
    }
  }

  #tuple(into: TuplePlaces, start: number, end: number): void {
    const usual = usualTuples[this.family]
    if (end - start === usual.bytes && this.#isUsual(usual, start)) {
      into.source = start + usual.source
      into.destination = start + usual.destination
      this.protocol = this.#buffer[start + usual.protocol] ?? 0
      into.sourcePort = this.#portAt(start + usual.sourcePort)
      into.destinationPort = this.#portAt(start + usual.destinationPort)
    } else this.#anyTuple(into, start, end)
  }

  #isUsual({ headers }: UsualTuple, start: number): boolean {
    for (const [at, header] of headers) if (this.#header(start + at) !== header) return false
    return true
  }

  #portAt(at: number): number {
    return ((this.#buffer[at] ?? 0) << 8) | (this.#buffer[at + 1] ?? 0)
  }

  #anyTuple(into: TuplePlaces, start: number, end: number): void {
    let length = 0
    for (let at = start; at + 4 <= end; at += aligned(length)) {
      const header = this.#header(at)
      length = lengthIn(header)
      if (length < 4 || at + length > end) return
      const type = typeIn(header)
      if (type === tuplePart.ip) {
        const { source, destination } = ipPart[this.family]
        into.source = this.#address(source, at + 4, at + length)
        into.destination = this.#address(destination, at + 4, at + length)
      } else if (type === tuplePart.protocol) {
        const number = this.#find(protocolPart.number, at + 4, at + length)
        if (number >= 0) this.protocol = this.#buffer[number] ?? 0
        into.sourcePort = this.#port(protocolPart.sourcePort, at + 4, at + length)
        into.destinationPort = this.#port(protocolPart.destinationPort, at + 4, at + length)
      }
    }
  }

  #port(type: number, start: number, end: number): number {
    const at = this.#find(type, start, end)
    return at < 0 ? 0 : this.#portAt(at)
  }

  #address(type: number, start: number, end: number): number {
    const at = this.#find(type, start, end)
    const bytes = this.family === 'IPv4' ? 4 : 16
    return at < 0 || at + bytes > end ? 0 : at
  }

  /** Exact up to 2^53: eight pebibytes of one connection. */
  #big(type: number, start: number, end: number): number {
    const at = this.#find(type, start, end)
    if (at < 0 || at + 8 > end) return 0
    return this.#buffer.readUInt32BE(at) * 2 ** 32 + this.#buffer.readUInt32BE(at + 4)
  }

  /** Where the value of the attribute starts; -1 for none. */
  #find(type: number, start: number, end: number): number {
    for (let at = start; at + 4 <= end;) {
      const header = this.#header(at)
      const length = lengthIn(header)
      if (length < 4 || at + length > end) return -1
      if (typeIn(header) === type) return at + 4
      at += aligned(length)
    }
    return -1
  }
}

const lengthIn = (header: number) => (isLittleEndian ? header & 0xffff : header >>> 16)
const typeIn = (header: number) => (isLittleEndian ? header >>> 16 : header) & typeMask

interface TuplePlaces {
  source: number
  sourcePort: number
  destination: number
  destinationPort: number
}

/** A key for maps: a number of 32 bits for IPv4, because numbers are found faster than texts. */
export function addressKey(family: IpFamily, bytes: Buffer, at: number): string | number {
  return family === 'IPv4' ? bytes.readUInt32BE(at) : bytes.toString('latin1', at, at + 16)
}
