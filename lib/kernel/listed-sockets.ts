import { addressFamilies, protocolNumbers } from './addresses.js'
import type { IpFamily } from '../state/ip.js'
import { openChannel, type NetlinkChannel } from './netlink/channel.js'
import { forEachAttribute } from './netlink/message-reader.js'
import { MessageWriter } from './netlink/message-writer.js'
import { flags, isLittleEndian } from './netlink/protocol.js'
import { ifThere } from '../errors.js'

const socketDiagnosis = 4
const byFamily = 20
const destroySocket = 21
const everyState = 0xffffffff
/**
 * Bits of the states TIME-WAIT and FIN-WAIT-2: connections whose end the peer has confirmed. The
 * kernel keeps them for a minute.
 */
export const endedStates = (1 << 6) | (1 << 5)
/** Bits of the states ESTABLISHED, FIN-WAIT-1, FIN-WAIT-2 and CLOSE-WAIT: bytes may still come or go. */
export const connectedStates = (1 << 1) | (1 << 4) | (1 << 5) | (1 << 8)
/** `struct inet_diag_sockid`: ports, addresses, interface, cookie. */
const idBytes = 48
const idAt = 4
const inodeAt = 68
/** The attributes begin here. */
const messageBytes = 72
const socketOptions = 22
/** A bit of the first byte of `struct inet_diag_sockopt`. */
const transparent = isLittleEndian ? 1 << 5 : 1 << 2
const requestBytes = 56
const requestIdAt = 8

/** A socket of one network namespace, as the kernel lists it. */
export interface ListedSocket {
  readonly cookie: bigint
  /** False for a socket that only the kernel keeps. */
  readonly isOpen: boolean
  /** It may have an address that no interface has. False where Linux is older than 5.10. */
  readonly isTransparent: boolean
  /** 4 or 16 bytes, in network order. */
  readonly own: Buffer
  /** 4 or 16 bytes, in network order. */
  readonly peer: Buffer
  readonly peerPort: number
  /** Family and id name the socket to the kernel, for `destroy`. */
  readonly family: IpFamily
  readonly id: Buffer
}

/** The sockets of a protocol in the network namespace in which this object was made. */
export class ListedSockets {
  readonly #protocol: 'TCP' | 'UDP'
  readonly #channel: NetlinkChannel

  constructor(protocol: 'TCP' | 'UDP', open = () => openChannel(socketDiagnosis)) {
    this.#protocol = protocol
    this.#channel = open()
  }

  list(family: IpFamily, states = everyState): Promise<readonly ListedSocket[]> {
    const request = new MessageWriter(128).message(byFamily, flags.dump, (message) => {
      message.fixed(requestFor(family, this.#protocol, states))
    })
    return this.#channel.dump(request, {
      action: `list the ${this.#protocol} sockets of ${family}`,
      parse: ({ payload }) => readSocket(family, payload),
    })
  }

  /** Destroys a socket; its user gets ECONNABORTED. False when the socket is gone already. */
  destroy({ family, id }: Pick<ListedSocket, 'family' | 'id'>): boolean {
    const request = new MessageWriter(128).message(destroySocket, flags.ack, (message) => {
      const bytes = requestFor(family, this.#protocol, everyState)
      bytes.set(id, requestIdAt)
      message.fixed(bytes)
    })
    const action = `destroy a ${this.#protocol} socket`
    return ifThere(() => this.#channel.request(request, action)) !== undefined
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
  const sockets = new ListedSockets('UDP')
  try {
    sockets.destroy({ family: 'IPv4', id: Buffer.alloc(idBytes) })
    return true
  } catch {
    return false
  } finally {
    sockets.close()
  }
}

function requestFor(family: IpFamily, protocol: 'TCP' | 'UDP', states: number): Buffer {
  const bytes = Buffer.alloc(requestBytes)
  bytes.writeUInt8(addressFamilies[family], 0)
  bytes.writeUInt8(protocolNumbers[protocol], 1)
  bytes.writeUInt32LE(states, 4)
  return bytes
}

function readSocket(family: IpFamily, payload: Buffer): ListedSocket | undefined {
  if (payload.length < messageBytes) return undefined
  let options = 0
  forEachAttribute(payload, messageBytes, (type, start) => {
    if (type === socketOptions) options = payload.readUInt8(start)
  })
  const id = Buffer.from(payload.subarray(idAt, idAt + idBytes))
  const addressBytes = family === 'IPv4' ? 4 : 16
  return {
    family,
    id,
    isOpen: payload.readUInt32LE(inodeAt) !== 0,
    isTransparent: (options & transparent) !== 0,
    own: id.subarray(4, 4 + addressBytes),
    peerPort: id.readUInt16BE(2),
    peer: id.subarray(20, 20 + addressBytes),
    cookie: id.readBigUInt64LE(40),
  }
}
