import type { Socket } from 'node:net'

/**
 * Resets a connection, so that its peer does not take a failure for an orderly end. While the end
 * is on its way to the kernel, libuv refuses to reset (EINVAL), and Node then never closes the
 * descriptor. Such a socket is only closed: what its peer was sent had already ended in order.
 */
export function reset(socket: Socket): void {
  // An end behind bytes that the peer has not taken is not on its way yet.
  const { writableEnded, writableFinished, writableLength } = socket
  if (writableEnded && !writableFinished && writableLength === 0) socket.destroy()
  else socket.resetAndDestroy()
}
