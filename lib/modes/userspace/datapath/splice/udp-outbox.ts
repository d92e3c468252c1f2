import { errno } from '../../../../kernel/sockets/errno.js'
import { DatagramBatch } from '../../../../kernel/sockets/datagrams.js'
import type { Libc } from '../../../../kernel/sockets/libc.js'
import type { EventLoop, Task } from './event-loop.js'
import type { Passed } from '../udp-listener-base.js'
import type { UdpClient } from './udp-client.js'

/**
 * Replies on their way to clients. All replies of one round of events, from any endpoint, leave
 * through the socket of the listener by one call.
 */
export class UdpOutbox implements Task {
  readonly #loop: EventLoop
  readonly #batch: DatagramBatch
  /** The listener's socket for the replies that wait here. */
  #socket = -1
  #count = 0

  constructor(libc: Libc, loop: EventLoop) {
    this.#loop = loop
    this.#batch = new DatagramBatch(libc, outboxCapacity)
  }

  /**
   * Receives from the client's endpoint, directly into the outgoing batch. Returns what came, or the
   * negative error.
   */
  collect(client: UdpClient, socket: number): Passed | number {
    if (socket !== this.#socket || this.#count + perCollect > outboxCapacity) this.run()
    const first = this.#count
    const datagrams = this.#batch.receive(client.fd, first, perCollect)
    if (datagrams < 0) return datagrams
    if (first === 0) this.#loop.later(this)
    this.#socket = socket
    this.#count = first + datagrams
    let bytes = 0
    for (let index = first; index < this.#count; index++) {
      const length = this.#batch.length(index)
      this.#batch.prepare(index, length, client.address, client.asked)
      bytes += length
    }
    return { datagrams, bytes }
  }

  /** Sends everything. What cannot be sent is lost, which is allowed for datagrams. */
  run(): void {
    let first = 0
    while (first < this.#count) {
      const sent = this.#batch.send(this.#socket, first, this.#count)
      if (sent === -errno.EAGAIN) break
      // The error is that of the first datagram; the next ones may still be sent.
      first += Math.max(sent, 1)
    }
    this.#count = 0
  }

  /** Sends what waits for a socket that is about to close. */
  flush(socket: number): void {
    if (socket === this.#socket) this.run()
    this.#socket = -1
  }
}

const outboxCapacity = 64
const perCollect = 8
