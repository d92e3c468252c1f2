import type { KernelError } from '../errors.js'
import type { IpFamily } from '../state/ip.js'
import { flags, genericHeader, genericHeaderBytes, protocols } from './netlink/protocol.js'
import { openChannel, type NetlinkChannel } from './netlink/channel.js'
import { kernelErrorOf, type NetlinkFailure } from './netlink/failure.js'
import { attributesOf, readU16 } from './netlink/message-reader.js'
import { changeInBatches } from './netlink/in-batches.js'
import { MessageWriter } from './netlink/message-writer.js'
import {
  commands,
  ipvsHeader,
  parseRealServer,
  parseServer,
  serverText,
  topAttribute,
  writeRealServer,
  writeRealServerAddress,
  writeServer,
  writeServerAddress,
  type ListedRealServer,
  type ListedServer,
  type RealServer,
  type ServerAddress,
  type VirtualServer,
} from './ipvs/messages.js'

export type {
  ListedRealServer,
  ListedServer,
  RealServer,
  ServerAddress,
  TrafficStats,
  VirtualServer,
} from './ipvs/messages.js'

/** One change of the kernel's tables; each is one netlink message. */
export type IpvsChange =
  | { readonly do: 'add-server' | 'set-server'; readonly server: VirtualServer }
  | { readonly do: 'delete-server'; readonly server: ServerAddress }
  | {
      readonly do: 'add-real' | 'set-real' | 'delete-real'
      readonly server: ServerAddress
      readonly real: RealServer
    }

export interface IpvsFailure {
  readonly change: IpvsChange
  readonly error: KernelError
}

/** Time-outs of connections in seconds; 0 leaves the kernel's value. */
export interface IpvsTimeouts {
  readonly tcp: number
  readonly tcpFin: number
  readonly udp: number
}

const verbs = {
  'add-server': commands.newService,
  'set-server': commands.setService,
  'delete-server': commands.deleteService,
  'add-real': commands.newDestination,
  'set-real': commands.setDestination,
  'delete-real': commands.deleteDestination,
} as const

/** The kernel's IP Virtual Server tables of this network namespace. */
export class Ipvs {
  readonly #channel: NetlinkChannel
  readonly #family: number

  private constructor(channel: NetlinkChannel, family: number) {
    this.#channel = channel
    this.#family = family
  }

  /** Throws a KernelError of kind `not-found` where the kernel has no IPVS (yet). */
  static open(
    channel: NetlinkChannel = openChannel(protocols.generic, { receiveBufferBytes: 1 << 20 }),
  ): Ipvs {
    try {
      return new Ipvs(channel, resolveFamily(channel, 'IPVS'))
    } catch (error) {
      channel.close()
      throw error
    }
  }

  /**
   * Makes the changes in order and tells which the kernel refused; the others are done. The
   * event loop gets its turn between batches.
   */
  async change(changes: readonly IpvsChange[]): Promise<readonly IpvsFailure[]> {
    const { refused } = await changeInBatches(this.#channel, changes, (writer, change, ack) =>
      this.#write(writer, change, ack),
    )
    return refused.map(({ change, failure }) => ({ change, error: errorOf(change, failure) }))
  }

  listServers(family: IpFamily): Promise<ListedServer[]> {
    const request = new MessageWriter(64).message(this.#family, flags.dump, (writer) =>
      writer.fixed(ipvsHeader(commands.getService)),
    )
    return this.#channel.dump(request, {
      action: 'list virtual servers',
      parse: ({ payload }) => {
        const server = parseServer(payload)
        return server?.family === family ? server : undefined
      },
    })
  }

  /** Empty for a server that does not exist. */
  listRealServers(server: ServerAddress): Promise<ListedRealServer[]> {
    const request = new MessageWriter(128).message(this.#family, flags.dump, (writer) =>
      writer
        .fixed(ipvsHeader(commands.getDestination))
        .nest(topAttribute.service, () => writeServerAddress(writer, server)),
    )
    return this.#channel.dump(request, {
      action: `list real servers of ${serverText(server)}`,
      parse: ({ payload }) => parseRealServer(server.family, payload),
    })
  }

  setTimeouts({ tcp, tcpFin, udp }: IpvsTimeouts): void {
    const request = new MessageWriter(64).message(this.#family, flags.ack, (writer) => {
      writer.fixed(ipvsHeader(commands.setConfig))
      writer.u32(topAttribute.tcp, tcp).u32(topAttribute.tcpFin, tcpFin).u32(topAttribute.udp, udp)
    })
    this.#channel.request(request, 'set ipvs time-outs')
  }

  close(): void {
    this.#channel.close()
  }

  #write(writer: MessageWriter, change: IpvsChange, ack: number): void {
    writer.message(this.#family, ack, () => {
      writer.fixed(ipvsHeader(verbs[change.do])).nest(topAttribute.service, () => {
        if (change.do === 'add-server' || change.do === 'set-server') {
          writeServer(writer, change.server)
        } else writeServerAddress(writer, change.server)
      })
      if (!('real' in change)) return
      const { real, server } = change
      writer.nest(topAttribute.destination, () => {
        if (change.do === 'delete-real') writeRealServerAddress(writer, real, server.family)
        else writeRealServer(writer, real, server.family)
      })
    })
  }
}

function errorOf(change: IpvsChange, failure: NetlinkFailure): KernelError {
  const [verb] = change.do.split('-')
  const server = serverText(change.server)
  if ('real' in change) {
    return kernelErrorOf(failure, `${verb} real server ${change.real.ip} of ${server}`)
  }
  if (failure.code === 'ENOENT' && change.do !== 'delete-server') {
    const { scheduler } = change.server
    const action = `${verb} virtual server ${server} with scheduler ${scheduler} (modprobe ip_vs_${scheduler})`
    return kernelErrorOf(failure, action)
  }
  return kernelErrorOf(failure, `${verb} virtual server ${server}`)
}

/** The control family of generic netlink. */
const control = { family: 16, getFamily: 3, id: 1, name: 2 } as const

/**
 * The message type of a generic netlink family. The request also makes the kernel load the module
 * of the family, if it may. A KernelError of kind `not-found` means that there is no such family.
 */
export function resolveFamily(channel: NetlinkChannel, name: string): number {
  const writer = new MessageWriter(64).message(control.family, flags.ack, (message) => {
    message.fixed(genericHeader(control.getFamily, 1)).string(control.name, name)
  })
  const [reply] = channel.request(writer, `look up generic netlink family ${name}`)
  const id = reply && attributesOf(reply.payload, genericHeaderBytes).get(control.id)
  return id ? readU16(id, 0) : 0
}
