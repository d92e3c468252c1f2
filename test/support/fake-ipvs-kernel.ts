/**
 * The part of a kernel that ipvs mode talks to over netlink, in memory: generic netlink IPVS and
 * rtnetlink. It answers bytes with bytes. `ipvs-behaviour.ts` runs against it and against the
 * real kernel, so that both behave alike.
 */
import { aligned, flags } from '../../lib/kernel/netlink/protocol.js'
import {
  attributesOf,
  readString,
  readU16,
  readU32,
} from '../../lib/kernel/netlink/message-reader.js'
import { forEachMessage, type Message } from '../../lib/kernel/netlink/message-reader.js'
import { MessageWriter } from '../../lib/kernel/netlink/message-writer.js'
import type { NetlinkPipe, OpenPipe, Received } from '../../lib/kernel/netlink/socket.js'

const familyNumber = 30
const errno = { noent: 2, srch: 3, exist: 17, nodev: 19, addrnotavail: 99, netunreach: 101 }

interface FakeReal {
  readonly attributes: Map<number, Buffer>
  active: number
}

interface FakeServer {
  readonly attributes: Map<number, Buffer>
  readonly reals: Map<string, FakeReal>
}

export class FakeIpvsKernel {
  /** Keys are the bytes that identify: family, protocol, address and port. */
  readonly servers = new Map<string, FakeServer>()
  readonly devices = new Map<string, Set<string>>([['lo', new Set()]])
  readonly schedulers = new Set(['rr', 'wrr', 'lc', 'dh', 'mh', 'sh'])
  /** Requests that change something, by command, in order. */
  readonly changes: string[] = []
  hasIpvs = true

  readonly openPipe: OpenPipe = () => {
    const queue: Buffer[] = []
    const pipe: NetlinkPipe = {
      send: (data) =>
        forEachMessage(Buffer.from(data), (message) => queue.push(...this.#answer(message))),
      receive: (): Received => {
        const data = queue.shift()
        return data ? { kind: 'datagram', data } : { kind: 'nothing' }
      },
      sendAside: () => Promise.reject(new Error('not played')),
      hear: () => true,
      close: () => undefined,
    }
    return pipe
  }

  /** Pretends that clients are connected to the real servers whose address ends in this byte. */
  connect(lastByte: number, active: number): void {
    for (const server of this.servers.values()) {
      for (const real of server.reals.values()) {
        if (real.attributes.get(1)?.[3] === lastByte) real.active = active
      }
    }
  }

  #answer(message: Message): Buffer[] {
    const isDump = (message.flags & flags.dump) === flags.dump
    const result = this.#handle(message, isDump)
    if (typeof result === 'number') {
      if (result === 0 && (message.flags & flags.ack) === 0) return []
      return [reply(message, 2, ackPayload(message, result))]
    }
    if (!isDump) return [...result, reply(message, 2, ackPayload(message, 0))]
    return [...result, reply(message, 3, Buffer.alloc(4))]
  }

  /** The result is an errno, 0 for success, or the messages of an answer. */
  #handle(message: Message, isDump: boolean): number | Buffer[] {
    if (message.type === familyNumber) return this.#ipvs(message, isDump)
    if (message.type !== 16 && message.type < 16) return errno.noent
    // Type 16 is the control family of generic netlink and RTM_NEWLINK of rtnetlink.
    const name = attributesOf(message.payload, 4).get(2)
    if (message.type === 16 && message.payload[0] === 3 && name && readString(name) === 'IPVS') {
      if (!this.hasIpvs) return errno.noent
      return [reply(message, 16, (w) => w.fixed(Buffer.alloc(4)).u16(1, familyNumber))]
    }
    return this.#route(message)
  }

  #ipvs(message: Message, isDump: boolean): number | Buffer[] {
    const command = message.payload[0] ?? 0
    const top = attributesOf(message.payload, 4)
    if (command === 4 && isDump) return this.#listServers(message)
    if (command === 12 || command === 13) return command === 12 ? 0 : []
    const nested = top.get(1)
    if (!nested) return 22
    const service = copied(attributesOf(nested))
    const key = keyOf(service, [1, 2, 3, 4])
    if (command === 8) return this.#listReals(message, key)
    this.changes.push(commandNames[command] ?? String(command))
    const destination = top.get(2)
    return destination
      ? this.#changeReal(command, key, copied(attributesOf(destination)))
      : this.#changeServer(command, key, service)
  }

  #changeServer(command: number, key: string, attributes: Map<number, Buffer>): number {
    const present = this.servers.get(key)
    if (command === 3) return this.servers.delete(key) ? 0 : errno.srch
    if (command === 1 && present) return errno.exist
    if (command === 2 && !present) return errno.srch
    if (!this.schedulers.has(readString(attributes.get(6)!))) return errno.noent
    this.servers.set(key, { attributes, reals: present?.reals ?? new Map<string, FakeReal>() })
    return 0
  }

  #changeReal(command: number, key: string, attributes: Map<number, Buffer>): number {
    const server = this.servers.get(key)
    if (!server) return errno.srch
    const id = keyOf(attributes, [1, 2])
    const present = server.reals.get(id)
    if (command === 7) return server.reals.delete(id) ? 0 : errno.noent
    if (command === 5 && present) return errno.exist
    if (command === 6 && !present) return errno.noent
    server.reals.set(id, { attributes, active: present?.active ?? 0 })
    return 0
  }

  #listServers(message: Message): Buffer[] {
    return Array.from(this.servers.values(), ({ attributes }) =>
      reply(message, familyNumber, (w) =>
        w.fixed(Buffer.from([1, 1, 0, 0])).nest(1, (inner) => {
          for (const [type, value] of attributes) inner.bytes(type, value)
        }),
      ),
    )
  }

  #listReals(message: Message, key: string): Buffer[] {
    return Array.from(this.servers.get(key)?.reals.values() ?? [], ({ attributes, active }) =>
      reply(message, familyNumber, (w) =>
        w.fixed(Buffer.from([5, 1, 0, 0])).nest(2, (inner) => {
          for (const [type, value] of attributes) inner.bytes(type, value)
          inner.u32(7, active).u32(8, 0)
        }),
      ),
    )
  }

  #route({ type, payload, ...rest }: Message): number | Buffer[] {
    const message = { type, payload, ...rest }
    if (type === 26) return this.#routeTo(message)
    if (type >= 20) return this.#addresses(message)
    const name = readString(attributesOf(payload, 16).get(3) ?? Buffer.alloc(0))
    if (type === 16) {
      if (this.devices.has(name)) return errno.exist
      this.devices.set(name, new Set())
      return 0
    }
    if (!this.devices.has(name)) return errno.nodev
    if (type === 17) return this.devices.delete(name) ? 0 : errno.nodev
    const header = Buffer.alloc(16)
    header.writeInt32LE([...this.devices.keys()].indexOf(name) + 1, 4)
    return [reply(message, 16, (w) => w.fixed(header).string(3, name))]
  }

  /** An address of a device is local, also while the device is down. */
  #routeTo(message: Message): number | Buffer[] {
    const address = attributesOf(message.payload, 12).get(1)!.toString('hex')
    if (![...this.devices.values()].some((addresses) => addresses.has(address)))
      return errno.netunreach
    const header = Buffer.alloc(12)
    header[7] = 2
    return [reply(message, 24, (w) => w.fixed(header))]
  }

  #addresses(message: Message): number | Buffer[] {
    const { type, payload } = message
    if (type === 22) {
      return [...this.devices.values()].flatMap((addresses, index) =>
        Array.from(addresses, (hex) => {
          const bytes = Buffer.from(hex, 'hex')
          const header = Buffer.alloc(8)
          header[0] = bytes.length === 4 ? 2 : 10
          header.writeUInt32LE(index + 1, 4)
          return reply(message, 20, (w) => w.fixed(header).bytes(2, bytes))
        }).filter((_, at) => [...addresses][at]!.length === (payload[0] === 2 ? 8 : 32)),
      )
    }
    const device = [...this.devices.values()][readU32(payload, 4) - 1]
    const address = attributesOf(payload, 8).get(2)!.toString('hex')
    if (!device) return errno.nodev
    this.changes.push(type === 20 ? 'add-address' : 'delete-address')
    if (type === 21) return device.delete(address) ? 0 : errno.addrnotavail
    if (device.has(address)) return errno.exist
    device.add(address)
    return 0
  }
}

const commandNames: Readonly<Record<number, string>> = {
  1: 'add-server',
  2: 'set-server',
  3: 'delete-server',
  5: 'add-real',
  6: 'set-real',
  7: 'delete-real',
}

function copied(attributes: ReadonlyMap<number, Buffer>): Map<number, Buffer> {
  return new Map(Array.from(attributes, ([type, value]) => [type, Buffer.from(value)]))
}

function keyOf(attributes: ReadonlyMap<number, Buffer>, types: readonly number[]): string {
  return types.map((type) => attributes.get(type)?.toString('hex') ?? '').join()
}

function reply(
  to: Message,
  type: number,
  body: Buffer | ((writer: MessageWriter) => void),
): Buffer {
  const writer = new MessageWriter().message(type, flags.multi, (w) =>
    Buffer.isBuffer(body) ? w.fixed(body) : body(w),
  )
  return Buffer.from(writer.finish(to.sequence))
}

/** An NLMSG_ERROR: the code and the header of what it answers. */
function ackPayload(to: Message, code: number): Buffer {
  const payload = Buffer.alloc(4 + aligned(16))
  payload.writeInt32LE(-code)
  payload.writeUInt16LE(readU16(Buffer.from([to.type & 255, to.type >> 8]), 0), 8)
  return payload
}
