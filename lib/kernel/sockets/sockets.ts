import { errno, SystemCallError } from './errno.js'
import { allocateNative, nonBlockingCloexec, type Libc, type NativeMemory } from './libc.js'
import { addressFamilies } from '../addresses.js'
import {
  decodeAddress,
  encodeAddress,
  familyOf,
  maxAddressLength,
  type SocketAddress,
} from './socket-address.js'

type SocketKind = 'stream' | 'datagram'

const types = { stream: 1, datagram: 2 } as const
const shutdownWrite = 1
/** Sending to a peer that is gone returns an error instead of raising a signal. */
const noSignal = 0x4000
const moreFollows = 0x8000

const level = { ip: 0, socket: 1, tcp: 6, ipv6: 41 } as const
const option = {
  reuseAddress: 2,
  error: 4,
  sendBuffer: 7,
  receiveBuffer: 8,
  keepAlive: 9,
  linger: 13,
  tcpNoDelay: 1,
  tcpKeepIdle: 4,
  tcpKeepInterval: 5,
  tcpKeepCount: 6,
  tcpUserTimeout: 18,
  ipv6Only: 26,
  originalDestination: 80,
  transparent: 19,
  ipv6Transparent: 75,
  tcpInfo: 11,
  packetInfo: 8,
  ipv6ReceivePacketInfo: 49,
} as const

/** The state of a TCP connection that has ended. */
const tcpClosed = 7

interface ListenOptions extends SocketAddress {
  readonly kind: SocketKind
  /** How many TCP connections may wait for `accept`. */
  readonly backlog?: number
}

/**
 * Non-blocking, close-on-exec sockets by number. Calls that every connection makes return a result
 * or the negative error; calls for listeners throw.
 */
export class Sockets {
  readonly #libc: Libc
  readonly #address: NativeMemory
  readonly #length: NativeMemory
  readonly #value: NativeMemory
  #bytes: NativeMemory | undefined

  constructor(libc: Libc) {
    this.#libc = libc
    this.#address = allocateNative(libc, maxAddressLength)
    this.#length = allocateNative(libc, 4)
    this.#value = allocateNative(libc, 8)
  }

  /** Opens a bound socket; a stream socket also listens. Closes the socket when a step fails. */
  listen(options: ListenOptions): number {
    const { ip, port, kind } = options
    const what = `listen on ${ip} port ${port}`
    const encoded = encodeAddress(options)
    const family = familyOf(encoded)
    const fd = this.#check(what, this.open(family, kind))
    try {
      // Without the option, connections in TIME_WAIT of an earlier listener block the port. For
      // datagrams the option would let two processes share the port.
      if (kind === 'stream') this.setOption(fd, level.socket, option.reuseAddress, 1)
      if (family === addressFamilies.IPv6) this.setOption(fd, level.ipv6, option.ipv6Only, 1)
      this.#check(what, this.#bind(fd, encoded))
      if (kind === 'stream') this.#check(what, this.#libc.listen(fd, options.backlog ?? 511))
      return fd
    } catch (error) {
      this.#libc.close(fd)
      throw error
    }
  }

  open(family: number, kind: SocketKind): number {
    return this.#libc.socket(family, types[kind] | nonBlockingCloexec, 0)
  }

  /**
   * Opens a socket with the address of another machine, for a connection in the name of that
   * machine. The socket has the port of the other machine, too, unless this port is taken here.
   * Needs NET_ADMIN or NET_RAW.
   */
  openAs(owner: SocketAddress, kind: SocketKind): number {
    const isIpv6 = owner.ip.includes(':')
    const fd = this.open(isIpv6 ? addressFamilies.IPv6 : addressFamilies.IPv4, kind)
    if (fd < 0) return fd
    const [at, name] = isIpv6
      ? [level.ipv6, option.ipv6Transparent]
      : [level.ip, option.transparent]
    let result = this.setOption(fd, at, name, 1)
    if (kind === 'stream') this.setOption(fd, level.socket, option.reuseAddress, 1)
    if (result === 0) result = this.#bind(fd, encodeAddress(owner))
    if (result === -errno.EADDRINUSE) result = this.#bind(fd, encodeAddress({ ...owner, port: 0 }))
    if (result >= 0) return fd
    this.#libc.close(fd)
    return result
  }

  /** Opens a socket that connects or has connected, from the address of `owner` if there is one. */
  connected(kind: SocketKind, to: Uint8Array, owner?: SocketAddress): number {
    // The same connection of the owner may have ended only just now; another port is free then.
    const owners = owner ? [owner, { ...owner, port: 0 }] : [undefined]
    let result = -errno.EADDRNOTAVAIL
    for (const each of owners) {
      const fd = each ? this.openAs(each, kind) : this.open(familyOf(to), kind)
      if (fd < 0) return fd
      result = this.connect(fd, to)
      if (result === 0 || result === -errno.EINPROGRESS) return fd
      this.#libc.close(fd)
      if (result !== -errno.EADDRNOTAVAIL) break
    }
    return result
  }

  #bind(fd: number, encoded: Uint8Array): number {
    this.#address.bytes.set(encoded)
    return this.#libc.bind(fd, this.#address.address, encoded.length)
  }

  /** The next waiting connection; {@link Sockets.peer} returns its address. */
  accept(listener: number): number {
    this.#length.view.setInt32(0, maxAddressLength, true)
    const { address } = this.#address
    return this.#libc.accept4(listener, address, this.#length.address, nonBlockingCloexec)
  }

  /**
   * The client of the last {@link Sockets.accept}, which does not format it because that is costly.
   */
  peer(): SocketAddress {
    return decodeAddress(this.#address.view, 0) ?? { ip: '', port: 0 }
  }

  connect(fd: number, encoded: Uint8Array): number {
    this.#address.bytes.set(encoded)
    return this.#libc.connect(fd, this.#address.address, encoded.length)
  }

  localAddress(fd: number): SocketAddress {
    this.#length.view.setInt32(0, maxAddressLength, true)
    const { address } = this.#address
    this.#check('read a local address', this.#libc.getsockname(fd, address, this.#length.address))
    return this.peer()
  }

  /**
   * The destination of an accepted TCP connection before rules changed it. Undefined where the
   * kernel does not track the connection.
   */
  originalDestination(fd: number, isIpv6: boolean): SocketAddress | undefined {
    const at = isIpv6 ? level.ipv6 : level.ip
    const name = option.originalDestination
    const result = this.#getOption(fd, at, name, this.#address, maxAddressLength)
    return result < 0 ? undefined : this.peer()
  }

  /** Whether a TCP connection has ended: either side reset it, or the kernel gave it up. */
  isGone(fd: number): boolean {
    const result = this.#getOption(fd, level.tcp, option.tcpInfo, this.#value, 1)
    return result === 0 && this.#value.bytes[0] === tcpClosed
  }

  /** The pending error of a socket as a negative number, 0 if none. Reading clears it. */
  takeError(fd: number): number {
    const result = this.#getOption(fd, level.socket, option.error, this.#value, 4)
    return result < 0 ? result : -this.#value.view.getInt32(0, true)
  }

  noDelay(fd: number): void {
    this.setOption(fd, level.tcp, option.tcpNoDelay, 1)
  }

  /** Sends ten probes, one a second, after this time of silence, as Node does. */
  keepAlive(fd: number, idleSeconds: number): void {
    this.setOption(fd, level.socket, option.keepAlive, 1)
    this.setOption(fd, level.tcp, option.tcpKeepIdle, idleSeconds)
    this.setOption(fd, level.tcp, option.tcpKeepInterval, 1)
    this.setOption(fd, level.tcp, option.tcpKeepCount, 10)
  }

  /**
   * Ends the connection when the peer has not confirmed, or not accepted, sent bytes for this time.
   */
  userTimeout(fd: number, ms: number): void {
    this.setOption(fd, level.tcp, option.tcpUserTimeout, ms)
  }

  /** Room for a burst; the kernel caps it at net.core.rmem_max and wmem_max. */
  bufferSizes(fd: number, bytes: number): void {
    this.setOption(fd, level.socket, option.sendBuffer, bytes)
    this.setOption(fd, level.socket, option.receiveBuffer, bytes)
  }

  /** From now on datagrams come with the local address that they were sent to. */
  tellDestination(fd: number, isIpv6: boolean): void {
    if (isIpv6) this.setOption(fd, level.ipv6, option.ipv6ReceivePacketInfo, 1)
    else this.setOption(fd, level.ip, option.packetInfo, 1)
  }

  /** Bytes received, 0 at the end of the stream, or the negative error. */
  receive(fd: number, address: number, length: number): number {
    return this.#libc.recv(fd, address, length, 0)
  }

  /**
   * What a read says behind the last byte: 0 for an orderly end, even if a reset came after it, or
   * the negative error.
   */
  endOf(fd: number): number {
    return Math.min(0, this.receive(fd, this.#value.address, 1))
  }

  /** A copy of what has come, at most 64 KiB; empty at the end of the stream, and after an error. */
  receiveCopy(fd: number): Buffer {
    const { address, bytes } = (this.#bytes ??= allocateNative(this.#libc, 1 << 16))
    return Buffer.from(bytes.subarray(0, Math.max(0, this.receive(fd, address, bytes.length))))
  }

  /** Bytes that the kernel took, or the negative error. */
  send(fd: number, address: number, length: number): number {
    return this.#libc.send(fd, address, length, noSignal)
  }

  /** Sends the last bytes before {@link Sockets.finishSending}, in one packet with the FIN. */
  sendLast(fd: number, address: number, length: number): number {
    return this.#libc.send(fd, address, length, noSignal | moreFollows)
  }

  close(fd: number): void {
    this.#libc.close(fd)
  }

  /** Ends our sending; the peer may go on. */
  finishSending(fd: number): number {
    return this.#libc.shutdown(fd, shutdownWrite)
  }

  /** Makes the next close a reset, so that the peer does not take it for an orderly end. */
  resetOnClose(fd: number): void {
    this.#value.view.setInt32(4, 0, true)
    this.setOption(fd, level.socket, option.linger, 1, 8)
  }

  setOption(fd: number, at: number, name: number, value: number, length = 4): number {
    this.#value.view.setInt32(0, value, true)
    return this.#libc.setsockopt(fd, at, name, this.#value.address, length)
  }

  #getOption(fd: number, at: number, name: number, into: NativeMemory, length: number): number {
    this.#length.view.setInt32(0, length, true)
    return this.#libc.getsockopt(fd, at, name, into.address, this.#length.address)
  }

  #check(what: string, result: number): number {
    if (result < 0) throw new SystemCallError(what, result)
    return result
  }
}
