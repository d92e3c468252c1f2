import { createSocket, type Socket } from 'node:dgram'
import { once } from 'node:events'
import { createServer, type Server } from 'node:net'
import type { IpFamily } from '../../state/ip.js'

export interface NodePortClaim {
  readonly family: IpFamily
  readonly protocol: 'TCP' | 'UDP'
  readonly port: number
}

/**
 * Sockets that hold the node ports of Services, so that no other program takes one and then
 * wonders where its clients are (US13). The rules redirect before anything gets here; what does
 * get here, on an address that node ports do not answer on, is reset at once (US14).
 */
export class NodePortClaims {
  readonly #held = new Map<string, { readonly owner: string; readonly socket: Server | Socket }>()

  /** Undefined when the owner holds the port now; else why not. */
  async claim(owner: string, claim: NodePortClaim): Promise<string | undefined> {
    const name = nameOf(claim)
    const held = this.#held.get(name)
    if (held) return held.owner === owner ? undefined : `${name} is held by ${held.owner}`
    try {
      const socket = claim.protocol === 'TCP' ? await holdTcp(claim) : await holdUdp(claim)
      this.#held.set(name, { owner, socket })
      return undefined
    } catch (error) {
      const code = error instanceof Error && 'code' in error ? String(error.code) : String(error)
      return code === 'EADDRINUSE'
        ? `node port ${claim.port}/${claim.protocol} is in use by another program on this node`
        : `hold node port ${claim.port}/${claim.protocol}: ${code}`
    }
  }

  /** Does nothing where the owner holds no such port (US15). */
  release(owner: string, claim: NodePortClaim): void {
    const name = nameOf(claim)
    const held = this.#held.get(name)
    if (held?.owner !== owner) return
    this.#held.delete(name)
    held.socket.close()
  }

  close(): void {
    for (const { socket } of this.#held.values()) socket.close()
    this.#held.clear()
  }
}

function nameOf({ family, protocol, port }: NodePortClaim): string {
  return `${family} node port ${port}/${protocol}`
}

async function holdTcp({ family, port }: NodePortClaim): Promise<Server> {
  const server = createServer({ pauseOnConnect: true }, (socket) => {
    socket.on('error', () => undefined)
    socket.resetAndDestroy()
  })
  server.listen({ host: family === 'IPv4' ? '0.0.0.0' : '::', port, ipv6Only: true })
  await once(server, 'listening')
  server.on('error', () => undefined)
  return server.unref()
}

async function holdUdp({ family, port }: NodePortClaim): Promise<Socket> {
  const socket = createSocket(
    family === 'IPv4' ? { type: 'udp4' } : { type: 'udp6', ipv6Only: true },
  )
  socket.on('message', () => undefined)
  socket.bind({ port })
  try {
    await once(socket, 'listening')
  } catch (error) {
    socket.close()
    throw error
  }
  socket.on('error', () => undefined)
  return socket.unref()
}
