import { createSocket, type Socket } from 'node:dgram'
import type { Server, Socket as TcpSocket } from 'node:net'
import { errnoName } from '../../../../kernel/sockets/errno.js'
import type { Sockets } from '../../../../kernel/sockets/sockets.js'
import { socketBufferBytes } from '../data-path.js'

/** A UDP socket without a resolver, which node:dgram otherwise asks for each datagram. */
export function createLiteralSocket(ip: string): Socket {
  const family = ip.includes(':') ? 6 : 4
  return createSocket({
    type: family === 6 ? 'udp6' : 'udp4',
    ipv6Only: family === 6,
    recvBufferSize: socketBufferBytes,
    sendBufferSize: socketBufferBytes,
    lookup: (host, _options, done) => done(null, host, family),
  })
}

/**
 * The number of the descriptor of one of Node's sockets, undefined when it cannot be read. Node
 * takes such numbers (`listen({ fd })`, `bind({ fd })`) but does not document where they are.
 */
export function descriptorOf(socket: Server | Socket | TcpSocket): number | undefined {
  const descriptor = field(handleOf(socket), 'fd')
  return typeof descriptor === 'number' && descriptor >= 0 ? descriptor : undefined
}

/** Removes the interface that Node adds to a link-local address. */
export function withoutScope(address: string): string {
  return address.replace(/%.*/, '')
}

/** Leaves all further datagrams to another process with the same socket; false where it cannot. */
export function stopReceiving(socket: Socket): boolean {
  const handle = handleOf(socket)
  const stop = field(handle, 'recvStop')
  if (typeof stop !== 'function') return false
  Reflect.apply(stop, handle, [])
  return true
}

/** The error in place of an end, which libuv does not report behind the last bytes: often a reset. */
export function errorBehind(
  socket: TcpSocket,
  sockets: Sockets,
): NodeJS.ErrnoException | undefined {
  const fd = descriptorOf(socket)
  const error = fd === undefined ? 0 : sockets.endOf(fd)
  if (error === 0) return undefined
  const code = errnoName(error)
  return Object.assign(new Error(code), { code })
}

/**
 * Node destroys a socket when it cannot send. With this it first emits what its peer has sent, and
 * tells of an orderly end before the reset.
 */
export function readBeforeDestroy(socket: TcpSocket, sockets: Sockets, ended: () => void): void {
  const destroy = socket.destroy.bind(socket)
  socket.destroy = (error) => {
    const fd = error && socket.readableFlowing ? descriptorOf(socket) : undefined
    socket.destroy = destroy
    while (fd !== undefined) {
      const bytes = sockets.receiveCopy(fd)
      if (bytes.length === 0) break
      socket.emit('data', bytes)
    }
    if (fd !== undefined && field(error, 'code') === 'EPIPE') ended()
    return destroy(error)
  }
}

function handleOf(socket: Server | Socket | TcpSocket): unknown {
  const state = Object.getOwnPropertySymbols(socket).find(
    ({ description }) => description === 'state symbol',
  )
  return state ? field(field(socket, state), 'handle') : field(socket, '_handle')
}

function field(of: unknown, name: string | symbol): unknown {
  return typeof of === 'object' && of !== null ? Reflect.get(of, name) : undefined
}
