import { addressFamilies, protocolNumbers } from './addresses.js'
import type { IpFamily } from '../state/ip.js'
import { openChannel, type NetlinkChannel } from './netlink/channel.js'
import { MessageWriter } from './netlink/message-writer.js'
import { flags } from './netlink/protocol.js'
import { KernelError } from '../errors.js'

const socketDiagnosis = 4
const byFamily = 20
const destroySocket = 21
const everyState = 0xffffffff
/** `struct inet_diag_sockid`: ports, addresses, interface, cookie. */
const idBytes = 48
const idAt = 4
const requestBytes = 56
const requestIdAt = 8

/** A UDP socket of one network namespace, as the kernel lists it. */
export interface UdpSocket {
  readonly cookie: bigint
  /** 4 or 16 bytes, in network order. */
  readonly peer: Buffer
  readonly peerPort: number
  /** Family and id name the socket to the kernel, for `destroy`. */
  readonly family: IpFamily
  readonly id: Buffer
}

/** The UDP sockets of the network namespace in which this object was made. */
export class UdpSockets {
  readonly #channel: NetlinkChannel

  constructor(open: () => NetlinkChannel = () => openChannel(socketDiagnosis)) {
    this.#channel = open()
  }

  list(family: IpFamily): Promise<readonly UdpSocket[]> {
    const request = new MessageWriter(128).message(byFamily, flags.dump, (message) => {
      message.fixed(requestFor(family))
    })
    return this.#channel.dump(request, {
      action: `list the UDP sockets of ${family}`,
      parse: ({ payload }) => readSocket(family, payload),
    })
  }

  /** Destroys a socket; its user gets ECONNABORTED. False when the socket is gone already. */
  destroy({ family, id }: UdpSocket): boolean {
    const request = new MessageWriter(128).message(destroySocket, flags.ack, (message) => {
      const bytes = requestFor(family)
      bytes.set(id, requestIdAt)
      message.fixed(bytes)
    })
    try {
      this.#channel.request(request, 'destroy a UDP socket')
      return true
    } catch (error) {
      if (error instanceof KernelError && error.kind === 'not-found') return false
      throw error
    }
  }

  close(): void {
    this.#channel.close()
  }
}

/**
 * Whether the kernel destroys sockets on request. A request for a socket that does not exist shows
 * it.
 */
export function destroysSockets(): boolean {
  const sockets = new UdpSockets()
  try {
    sockets.destroy({
      ...{ cookie: 0n, peer: Buffer.alloc(4), peerPort: 0, family: 'IPv4' },
      id: Buffer.alloc(idBytes),
    })
    return true
  } catch {
    return false
  } finally {
    sockets.close()
  }
}

function requestFor(family: IpFamily): Buffer {
  const bytes = Buffer.alloc(requestBytes)
  bytes.writeUInt8(addressFamilies[family], 0)
  bytes.writeUInt8(protocolNumbers.UDP, 1)
  bytes.writeUInt32LE(everyState, 4)
  return bytes
}

function readSocket(family: IpFamily, payload: Buffer): UdpSocket | undefined {
  if (payload.length < idAt + idBytes) return undefined
  const id = Buffer.from(payload.subarray(idAt, idAt + idBytes))
  return {
    family,
    id,
    peerPort: id.readUInt16BE(2),
    peer: id.subarray(20, family === 'IPv4' ? 24 : 36),
    cookie: id.readBigUInt64LE(40),
  }
}
