import { NativeSocket } from './native-socket.js'

/**
 * Node has no SCTP, but a one-to-one SCTP socket behaves like a TCP socket for everything after
 * socket(2), and node:net accepts it as a file descriptor.
 */
export function openSctpSocket(host: string): NativeSocket {
  return new NativeSocket(host, 'stream', 'sctp')
}

export function openSctpServerSocket(host: string, port: number): number {
  const socket = openSctpSocket(host)
  socket.bind(host, port)
  return socket.descriptor
}

/** Whether this thread's kernel knows SCTP (S28). */
export function hasSctp(): boolean {
  try {
    openSctpSocket('127.0.0.1').close()
    return true
  } catch {
    return false
  }
}
