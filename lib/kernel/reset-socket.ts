import type { Socket } from 'node:net'

/**
 * Ends a TCP connection by a reset, at once. Node's own `resetAndDestroy` sends what still waits
 * to be sent, then ends in order, then resets: a peer takes that for a whole answer, and with one
 * that does not read it never happens. What it says to `destroy` before it gets there is said here.
 */
export function resetSocket(socket: Socket): void {
  Reflect.set(socket, 'resetAndClosing', true)
  socket.destroy()
}
