import { reset } from '../../../kernel/sockets/reset.js'
import { createSocket, type Socket } from 'node:dgram'
import { once } from 'node:events'
import { createServer, type Server } from 'node:net'
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
 * Sockets on the node ports of Services, so that no other program opens one of these ports and
 * waits in vain for clients (US13). The rules redirect connections before they get to these
 * sockets. A connection to an address where node ports do not answer gets here and is reset (US14).
 */
export class ReservedNodePorts {
  readonly #descriptors: DescriptorBudget
  readonly #reserved = new Map<
    string,
    { readonly owner: string; readonly sockets: readonly (Server | Socket)[] }
  >()

  constructor(descriptors: DescriptorBudget) {
    this.#descriptors = descriptors
  }

  /** Undefined when the owner has the port now, otherwise the reason why not. */
  async reserve(owner: string, nodePort: ReservedNodePort): Promise<string | undefined> {
    const name = nameOf(nodePort)
    const reserved = this.#reserved.get(name)
    if (reserved)
      return reserved.owner === owner ? undefined : `${name} is held by ${reserved.owner}`
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
        const code = error instanceof Error && 'code' in error ? String(error.code) : String(error)
        // An address that has just left the node needs no socket.
        if (code === 'EADDRNOTAVAIL') continue
        this.#close(sockets)
        return code === 'EADDRINUSE'
          ? `${name} is in use by another program on this node`
          : `reserve ${name}: ${code}`
      }
    }
    this.#reserved.set(name, { owner, sockets })
    return undefined
  }

  /** Does nothing where the owner has no such port (US15). */
  release(owner: string, nodePort: ReservedNodePort): void {
    const name = nameOf(nodePort)
    const reserved = this.#reserved.get(name)
    if (reserved?.owner !== owner) return
    this.#reserved.delete(name)
    this.#close(reserved.sockets)
  }

  close(): void {
    for (const { sockets } of this.#reserved.values()) this.#close(sockets)
    this.#reserved.clear()
  }

  #close(sockets: readonly (Server | Socket)[]): void {
    for (const socket of sockets) {
      socket.close()
      this.#descriptors.stopListening()
    }
  }
}

export function isSameNodePort(
  one: ReservedNodePort | undefined,
  other: ReservedNodePort | undefined,
): boolean {
  if (!one || !other) return one === other
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
