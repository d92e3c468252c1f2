import { ifThere, KernelError, unless } from '../errors.js'
import { bitsOf, familyOf, type IpFamily } from '../state/ip.js'
import { addressBytes, addressFamilies } from './addresses.js'
import { openChannel, type NetlinkChannel } from './netlink/channel.js'
import { attributesOf, readI32, readString } from './netlink/message-reader.js'
import { MessageWriter } from './netlink/message-writer.js'
import { flags, hostBytes, protocols } from './netlink/protocol.js'

const verb = {
  getLink: 18,
  newRoute: 24,
  deleteRoute: 25,
  getRoute: 26,
  newRule: 32,
  deleteRule: 33,
} as const
const routeAttribute = { destination: 1, device: 4, gateway: 5, table: 15, via: 18 } as const
const ruleAttribute = { priority: 6, mark: 10, table: 15, mask: 16 } as const
export const linkAttribute = { name: 3, info: 18, kind: 1 } as const
const linkHeaderBytes = 16
const routeHeaderBytes = 12
const local = 2
const scopeHost = 254
const writtenByHand = 4
const toTable = 1
/** Stands for a table whose number does not fit into a byte. */
const compatTable = 252
const loopback = 1

/** Where this node sends packets to an address. */
export interface Route {
  /** The address is this node's own. */
  readonly isLocal: boolean
  /** Another machine forwards the packets. */
  readonly hasGateway: boolean
  readonly device: number
}

/** Marked packets are looked up in a table that delivers everything on this node. */
interface Diversion {
  readonly mark: number
  readonly table: number
  readonly priority: number
}

/** Undefined where there is no route. */
export function routeTo(channel: NetlinkChannel, ip: string): Route | undefined {
  const family = familyOf(ip)
  const bytes = addressBytes(ip)
  if (!family || !bytes) return undefined
  const header = new Uint8Array(routeHeaderBytes)
  header.set([addressFamilies[family], bitsOf(family)])
  const request = new MessageWriter(64).message(verb.getRoute, flags.ack, (writer) =>
    writer.fixed(header).bytes(routeAttribute.destination, bytes),
  )
  try {
    const [reply] = channel.request(request, `look up the route to ${ip}`)
    return reply && routeFrom(reply.payload)
  } catch (error) {
    if (error instanceof KernelError) return undefined
    throw error
  }
}

/** The kind of a device by its attributes, such as `bridge`. Physical devices have none. */
export function kindOf(read: ReadonlyMap<number, Buffer>): string | undefined {
  const info = read.get(linkAttribute.info)
  const kind = info && attributesOf(info).get(linkAttribute.kind)
  return kind && readString(kind)
}

/** Routes and routing rules, over rtnetlink. */
export class Routes {
  readonly #channel = openChannel(protocols.route)

  /** Undefined where there is no route. */
  to(ip: string): Route | undefined {
    return routeTo(this.#channel, ip)
  }

  /** The name of a device, and its kind, such as `bridge`; undefined when it is gone. */
  device(index: number): { readonly name: string; readonly kind: string } | undefined {
    const header = new Uint8Array(linkHeaderBytes)
    header.set(hostBytes(index), 4)
    const request = new MessageWriter(64).message(verb.getLink, flags.ack, (writer) =>
      writer.fixed(header),
    )
    const action = `look up device ${index}`
    const reply = ifThere(() => this.#channel.request(request, action)[0])
    const read = reply && attributesOf(reply.payload, linkHeaderBytes)
    const name = read?.get(linkAttribute.name)
    return read && name && { name: readString(name), kind: kindOf(read) ?? '' }
  }

  /**
   * Delivers marked packets on this node, whatever their destination. Repeating it does nothing.
   */
  divert(family: IpFamily, diversion: Diversion): void {
    const create = flags.ack | flags.create | flags.excl
    this.#change('exists', routeRequest(verb.newRoute, create, family, diversion))
    this.#change('exists', ruleRequest(verb.newRule, create, family, diversion))
  }

  /** Undoes {@link Routes.divert}, also that of an earlier process. */
  undivert(family: IpFamily, diversion: Diversion): void {
    this.#change('not-found', ruleRequest(verb.deleteRule, flags.ack, family, diversion))
    this.#change('not-found', routeRequest(verb.deleteRoute, flags.ack, family, diversion))
  }

  close(): void {
    this.#channel.close()
  }

  #change(tolerated: 'exists' | 'not-found', request: MessageWriter): void {
    unless([tolerated], () =>
      this.#channel.request(request, 'change the routing of marked packets'),
    )
  }
}

function routeFrom(payload: Buffer): Route {
  const read = attributesOf(payload, routeHeaderBytes)
  const device = read.get(routeAttribute.device)
  return {
    isLocal: payload[7] === local,
    hasGateway: read.has(routeAttribute.gateway) || read.has(routeAttribute.via),
    device: device ? readI32(device, 0) : 0,
  }
}

function routeRequest(type: number, flag: number, family: IpFamily, { table }: Diversion) {
  const header = new Uint8Array(routeHeaderBytes)
  header.set([addressFamilies[family], 0, 0, 0, compatTable, writtenByHand, scopeHost, local])
  return new MessageWriter(64).message(type, flag, (writer) =>
    writer.fixed(header).u32(routeAttribute.table, table).u32(routeAttribute.device, loopback),
  )
}

function ruleRequest(type: number, flag: number, family: IpFamily, diversion: Diversion) {
  const { mark, table, priority } = diversion
  const header = new Uint8Array(routeHeaderBytes)
  header.set([addressFamilies[family], 0, 0, 0, compatTable, 0, 0, toTable])
  return new MessageWriter(96).message(type, flag, (writer) =>
    writer
      .fixed(header)
      .u32(ruleAttribute.priority, priority)
      .u32(ruleAttribute.mark, mark)
      .u32(ruleAttribute.mask, mark)
      .u32(ruleAttribute.table, table),
  )
}
