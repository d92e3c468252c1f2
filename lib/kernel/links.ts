import { setImmediate, setTimeout as sleep } from 'node:timers/promises'
import { ifThere, KernelError } from '../errors.js'
import { bitsOf, type IpFamily } from '../state/ip.js'
import { addressBytes, addressFamilies, addressText } from './addresses.js'
import type { AddressFailure } from './link-addresses.js'
import { openChannel, type NetlinkChannel } from './netlink/channel.js'
import { changeInBatches } from './netlink/in-batches.js'
import { kernelErrorOf } from './netlink/failure.js'
import { attributesOf, readI32, readU32 } from './netlink/message-reader.js'
import { MessageWriter } from './netlink/message-writer.js'
import { flags, hostBytes, protocols } from './netlink/protocol.js'
import { kindOf, linkAttribute, routeTo } from './routes.js'

const verb = {
  newLink: 16,
  deleteLink: 17,
  getLink: 18,
  newAddress: 20,
  deleteAddress: 21,
  getAddress: 22,
} as const
const addressAttribute = { address: 1, local: 2, metric: 9 } as const
const linkHeaderBytes = 16
const addressHeaderBytes = 8
const noDuplicateDetection = 0x2
const routesAtOnce = 128
const longestSettleMs = 1000

/** Network devices and their addresses, over rtnetlink. */
export class Links {
  readonly #channel: NetlinkChannel

  constructor(
    channel: NetlinkChannel = openChannel(protocols.route, { receiveBufferBytes: 1 << 20 }),
  ) {
    this.#channel = channel
  }

  /** The index of a device, or undefined when there is none of that name. */
  find(name: string): number | undefined {
    const reply = this.#request(verb.getLink, name, `look up device ${name}`)?.[0]
    return reply && readI32(reply.payload, 4)
  }

  /**
   * The index of a dummy device, which is created if need be. The device stays down, because its
   * addresses are local anyway.
   */
  ensureDummy(name: string): number {
    const known = this.find(name)
    if (known !== undefined) return known
    const request = new MessageWriter(128).message(
      verb.newLink,
      flags.ack | flags.create | flags.excl,
      (writer) =>
        writer
          .fixed(new Uint8Array(linkHeaderBytes))
          .string(linkAttribute.name, name)
          .nest(linkAttribute.info, (info) => info.string(linkAttribute.kind, 'dummy')),
    )
    this.#channel.request(request, `create dummy device ${name} (modprobe dummy)`)
    const index = this.find(name)
    if (index === undefined) {
      throw new KernelError('failed', `create dummy device ${name}: it is gone again`)
    }
    return index
  }

  /** Removes a device; false when there is none. */
  remove(name: string): boolean {
    return this.#request(verb.deleteLink, name, `remove device ${name}`) !== undefined
  }

  /** Undefined when there is no device of that name. */
  #request(type: number, name: string, action: string) {
    const request = new MessageWriter(64).message(type, flags.ack, (writer) =>
      writer.fixed(new Uint8Array(linkHeaderBytes)).string(linkAttribute.name, name),
    )
    return ifThere(() => this.#channel.request(request, action))
  }

  /** The kinds of all devices. */
  async kinds(): Promise<ReadonlySet<string>> {
    const request = new MessageWriter(64).message(verb.getLink, flags.dump, (writer) =>
      writer.fixed(new Uint8Array(linkHeaderBytes)),
    )
    const kinds = await this.#channel.dump(request, {
      action: 'list devices',
      parse: ({ payload }) => kindOf(attributesOf(payload, linkHeaderBytes)),
    })
    return new Set(kinds)
  }

  /**
   * The addresses of one family: of the device `on`, or of all devices but those of the indices in
   * `without`. With `metric`, only the addresses that were added with it. With `prefixes`, a prefix
   * is named if it is shorter than the address.
   */
  addresses(
    family: IpFamily,
    wanted: {
      readonly on?: number
      readonly without?: ReadonlySet<number | undefined>
      readonly metric?: number
      readonly prefixes?: true
    } = {},
  ) {
    const request = new MessageWriter(64).message(verb.getAddress, flags.dump, (writer) =>
      writer.fixed(addressHeader(family, 0, 0)),
    )
    return this.#channel.dump(request, {
      action: `list ${family} addresses`,
      parse: ({ payload }) => {
        // A kernel without IPv6 lists the addresses of all families instead.
        if (payload[0] !== addressFamilies[family]) return undefined
        const device = readU32(payload, 4)
        if (wanted.on !== undefined && device !== wanted.on) return undefined
        if (wanted.without?.has(device)) return undefined
        const read = attributesOf(payload, addressHeaderBytes)
        if (wanted.metric !== undefined) {
          const metric = read.get(addressAttribute.metric)
          if (!metric || readU32(metric, 0) !== wanted.metric) return undefined
        }
        const address = read.get(addressAttribute.local) ?? read.get(addressAttribute.address)
        const text = address && addressText(family, address)
        const prefix = payload[1]
        return text && wanted.prefixes && prefix !== bitsOf(family) ? `${text}/${prefix}` : text
      },
    })
  }

  /**
   * Adds single addresses (/32, /128) to a device, unless they are there already. A metric means
   * nothing for single addresses, so it may serve as a mark. Resolves once clients reach them.
   */
  async addAddresses(family: IpFamily, index: number, ips: readonly string[], metric?: number) {
    const change = { family, index, ips, metric }
    const failures = await this.#changeAddresses(verb.newAddress, 'exists', change)
    if (family === 'IPv6') {
      const failed = new Set(failures.map(({ ip }) => ip))
      await this.#settled(ips.filter((ip) => !failed.has(ip)))
    }
    return failures
  }

  /** Removes addresses, single ones unless they name a prefix, if they are there. */
  deleteAddresses(family: IpFamily, index: number, ips: readonly string[]) {
    return this.#changeAddresses(verb.deleteAddress, 'not-found', { family, index, ips })
  }

  close(): void {
    this.#channel.close()
  }

  /** Waits for the kernel, which routes packets to new IPv6 addresses only a moment later. */
  async #settled(ips: readonly string[]): Promise<void> {
    const deadline = performance.now() + longestSettleMs
    for (const [number, ip] of ips.entries()) {
      if (number % routesAtOnce === 0) await setImmediate()
      while (routeTo(this.#channel, ip)?.isLocal !== true) {
        if (performance.now() > deadline) return
        await sleep(1)
      }
    }
  }

  async #changeAddresses(
    type: number,
    tolerated: 'exists' | 'not-found',
    change: {
      readonly family: IpFamily
      readonly index: number
      readonly ips: readonly string[]
      readonly metric?: number | undefined
    },
  ): Promise<readonly AddressFailure[]> {
    const { family, index, ips, metric } = change
    const isAdd = type === verb.newAddress
    const { refused } = await changeInBatches(this.#channel, ips, (writer, ip, ack) => {
      const [text = '', prefix = bitsOf(family)] = ip.split('/')
      const header = addressHeader(family, index, Number(prefix))
      const bytes = addressBytes(text) ?? Buffer.alloc(0)
      writer.message(type, ack | (isAdd ? flags.create | flags.excl : 0), (message) => {
        message
          .fixed(header)
          .bytes(addressAttribute.local, bytes)
          .bytes(addressAttribute.address, bytes)
        if (metric !== undefined) message.u32(addressAttribute.metric, metric)
      })
    })
    return refused
      .map(({ change: ip, failure }) => ({
        ip,
        error: kernelErrorOf(failure, `${isAdd ? 'add' : 'remove'} address ${ip}`),
      }))
      .filter(({ error }) => error.kind !== tolerated)
  }
}

/** An ifaddrmsg. */
function addressHeader(family: IpFamily, index: number, prefix: number): Uint8Array {
  const header = Buffer.alloc(addressHeaderBytes)
  header[0] = addressFamilies[family]
  header[1] = prefix
  header[2] = family === 'IPv6' ? noDuplicateDetection : 0
  header.set(hostBytes(index), 4)
  return header
}
