import { reset } from '../../../kernel/sockets/reset.js'
import { createSocket, type Socket } from 'node:dgram'
import { once } from 'node:events'
import { createServer, type Server } from 'node:net'
import { codeOf, messageOf } from '../../../errors.js'
import type { IpFamily } from '../../../state/ip.js'
import { listenAdvice, type DescriptorBudget } from '../datapath/descriptors.js'

export interface ReservedNodePort {
  readonly family: IpFamily
  readonly protocol: 'TCP' | 'UDP'
  readonly port: number
  /** Undefined: the wildcard. */
  readonly addresses: readonly string[] | undefined
}

/**
 * Sockets on the node ports of Services of one family, so that no other program opens one of these
 * ports and waits in vain for clients (US13). The rules redirect connections before they get to
 * these sockets. A connection to an address where node ports do not answer gets here and is reset
 * (US14).
 */
export class ReservedNodePorts {
  readonly #descriptors: DescriptorBudget
  readonly #reserved = new Map<
    string,
    { readonly nodePort: ReservedNodePort; readonly sockets: readonly (Server | Socket)[] }
  >()
  /** By the name of the port. */
  readonly #owners = new Map<string, string>()

  constructor(descriptors: DescriptorBudget) {
    this.#descriptors = descriptors
  }

  has(owner: string): boolean {
    return this.#reserved.has(owner)
  }

  /** Undefined when the owner has the port now, otherwise the reason why not. */
  async reserve(owner: string, nodePort: ReservedNodePort): Promise<string | undefined> {
    if (this.has(owner)) return undefined
    const name = nameOf(nodePort)
    const other = this.#owners.get(name)
    if (other !== undefined) return `${name} is held by ${other}`
    const wildcard = nodePort.family === 'IPv4' ? '0.0.0.0' : '::'
    const open = nodePort.protocol === 'TCP' ? openTcp : openUdp
    const sockets: (Server | Socket)[] = []
    for (const address of nodePort.addresses ?? [wildcard]) {
      if (!this.#descriptors.tryListen()) {
        this.#close(sockets)
        return `reserve ${name}: ${listenAdvice}`
      }
      try {
        sockets.push(await open(address, nodePort.port))
      } catch (error) {
        this.#descriptors.stopListening()
        const code = codeOf(error) || messageOf(error)
        // An address that has just left the node needs no socket.
        if (code === 'EADDRNOTAVAIL') continue
        this.#close(sockets)
        return code === 'EADDRINUSE'
          ? `${name} is in use by another program on this node`
          : `reserve ${name}: ${code}`
      }
    }
    this.#reserved.set(owner, { nodePort, sockets })
    this.#owners.set(name, owner)
    return undefined
  }

  /** Gives up the owner's port, unless it is the wanted one (US15). */
  release(owner: string, wanted?: ReservedNodePort): void {
    const held = this.#reserved.get(owner)
    if (!held || isSame(held.nodePort, wanted)) return
    this.#reserved.delete(owner)
    this.#owners.delete(nameOf(held.nodePort))
    this.#close(held.sockets)
  }

  close(): void {
    for (const owner of this.#reserved.keys()) this.release(owner)
  }

  #close(sockets: readonly (Server | Socket)[]): void {
    for (const socket of sockets) {
      socket.close()
      this.#descriptors.stopListening()
    }
  }
}

function isSame(one: ReservedNodePort, other: ReservedNodePort | undefined): boolean {
  if (!other) return false
  return nameOf(one) === nameOf(other) && one.addresses?.join() === other.addresses?.join()
}

function nameOf({ family, protocol, port }: ReservedNodePort): string {
  return `${family} node port ${port}/${protocol}`
}

async function openTcp(host: string, port: number): Promise<Server> {
  const server = createServer({ pauseOnConnect: true }, (socket) => {
    socket.on('error', () => undefined)
    reset(socket)
  })
  server.listen({ host, port, ipv6Only: true })
  await once(server, 'listening')
  server.on('error', () => undefined)
  return server.unref()
}

async function openUdp(address: string, port: number): Promise<Socket> {
  const isIpv6 = address.includes(':')
  const socket = createSocket(isIpv6 ? { type: 'udp6', ipv6Only: true } : { type: 'udp4' })
  socket.on('message', () => undefined)
  socket.bind({ address, port })
  try {
    await once(socket, 'listening')
  } catch (error) {
    socket.close()
    throw error
  }
  socket.on('error', () => undefined)
  return socket.unref()
}
