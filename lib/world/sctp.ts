import koffi from 'koffi'
import { KernelError } from '../errors.js'
import { parseIp } from '../state/ip.js'

const af = { IPv4: 2, IPv6: 10 }
const sockStreamNonBlocking = 1 | 0o4000
const ipprotoSctp = 132

const errnoText = (action: string) =>
  new KernelError('unsupported', `${action} an SCTP socket: errno ${koffi.errno()}`)

/**
 * Node has no SCTP, but a one-to-one SCTP socket behaves like a TCP socket for everything after
 * socket(2), and node:net accepts it as a file descriptor.
 */
export function openSctpSocket(host: string): number {
  const socket = koffi.load(null).func('int socket(int domain, int type, int protocol)')
  const family = host.includes(':') ? af.IPv6 : af.IPv4
  const descriptor: unknown = socket(family, sockStreamNonBlocking, ipprotoSctp)
  if (typeof descriptor !== 'number' || descriptor < 0) throw errnoText('open')
  return descriptor
}

export function openSctpServerSocket(host: string, port: number): number {
  const descriptor = openSctpSocket(host)
  bindSctpSocket(descriptor, host, port)
  return descriptor
}

export function bindSctpSocket(descriptor: number, host: string, port: number): void {
  const bind = koffi.load(null).func('int bind(int fd, const uint8_t *address, uint32_t length)')
  const address = socketAddress(host, port)
  if (bind(descriptor, address, address.length) !== 0) throw errnoText('bind')
}

/** Whether this thread's kernel knows SCTP (S28). */
export function hasSctp(): boolean {
  try {
    const close = koffi.load(null).func('int close(int fd)')
    close(openSctpSocket('127.0.0.1'))
    return true
  } catch {
    return false
  }
}

function socketAddress(host: string, port: number): Uint8Array {
  if (!host.includes(':')) {
    const bytes = new Uint8Array(16)
    new DataView(bytes.buffer).setUint16(0, af.IPv4, true)
    new DataView(bytes.buffer).setUint16(2, port)
    bytes.set(host.split('.').map(Number), 4)
    return bytes
  }
  const ip = parseIp(host)
  const bytes = new Uint8Array(28)
  new DataView(bytes.buffer).setUint16(0, af.IPv6, true)
  new DataView(bytes.buffer).setUint16(2, port)
  new DataView(bytes.buffer).setBigUint64(8, (ip?.value ?? 0n) >> 64n)
  new DataView(bytes.buffer).setBigUint64(16, (ip?.value ?? 0n) & 0xffff_ffff_ffff_ffffn)
  return bytes
}
