import { createSocket, type Socket } from 'node:dgram'
import { once } from 'node:events'
import { createServer, type Server } from 'node:net'
import type { IpFamily } from '../../../state/ip.js'

export interface NodePortClaim {
  readonly family: IpFamily
  readonly protocol: 'TCP' | 'UDP'
  readonly port: number
  /** Undefined: the wildcard. */
  readonly addresses: readonly string[] | undefined
}

/**
 * Sockets that hold the node ports of Services, so that no other program takes one and then
 * wonders where its clients are (US13). The rules redirect before anything gets here; what does
 * get here, on an address that node ports do not answer on, is reset at once (US14).
 */
export class NodePortClaims {
  readonly #held = new Map<string, { readonly owner: string; readonly sockets: readonly Held[] }>()

  /** Undefined when the owner holds the port now; else why not. */
  async claim(owner: string, claim: NodePortClaim): Promise<string | undefined> {
    const name = nameOf(claim)
    const held = this.#held.get(name)
    if (held) return held.owner === owner ? undefined : `${name} is held by ${held.owner}`
    const wildcard = claim.family === 'IPv4' ? '0.0.0.0' : '::'
    const sockets: Held[] = []
    for (const address of claim.addresses ?? [wildcard]) {
      try {
        sockets.push(await (claim.protocol === 'TCP' ? holdTcp : holdUdp)(address, claim.port))
      } catch (error) {
        const code = error instanceof Error && 'code' in error ? String(error.code) : String(error)
        // An address that has just left the node needs no holding.
        if (code === 'EADDRNOTAVAIL') continue
        for (const socket of sockets) socket.close()
        return code === 'EADDRINUSE'
          ? `${name} is in use by another program on this node`
          : `hold ${name}: ${code}`
      }
    }
    this.#held.set(name, { owner, sockets })
    return undefined
  }

  /** Does nothing where the owner holds no such port (US15). */
  release(owner: string, claim: NodePortClaim): void {
    const name = nameOf(claim)
    const held = this.#held.get(name)
    if (held?.owner !== owner) return
    this.#held.delete(name)
    for (const socket of held.sockets) socket.close()
  }

  close(): void {
    for (const { sockets } of this.#held.values()) for (const socket of sockets) socket.close()
    this.#held.clear()
  }
}

type Held = Server | Socket

export function isSameClaim(one: NodePortClaim | undefined, other: NodePortClaim | undefined) {
  if (!one || !other) return one === other
  return nameOf(one) === nameOf(other) && one.addresses?.join() === other.addresses?.join()
}

function nameOf({ family, protocol, port }: NodePortClaim): string {
  return `${family} node port ${port}/${protocol}`
}

async function holdTcp(host: string, port: number): Promise<Server> {
  const server = createServer({ pauseOnConnect: true }, (socket) => {
    socket.on('error', () => undefined)
    socket.resetAndDestroy()
  })
  server.listen({ host, port, ipv6Only: true })
  await once(server, 'listening')
  server.on('error', () => undefined)
  return server.unref()
}

async function holdUdp(address: string, port: number): Promise<Socket> {
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
