import { errno } from '../../../../kernel/sockets/errno.js'
import { DatagramBatch } from '../../../../kernel/sockets/datagrams.js'
import type { Libc } from '../../../../kernel/sockets/libc.js'
import type { EventLoop, Task } from './event-loop.js'
import type { UdpClient } from './udp-client.js'

/**
 * Replies on their way to clients. All that come in one round of events, from whatever
 * endpoints, leave through the service socket by one call.
 */
export class UdpOutbox implements Task {
  readonly #loop: EventLoop
  readonly #batch: DatagramBatch
  /** The service socket of what waits here. */
  #socket = -1
  #count = 0

  constructor(libc: Libc, loop: EventLoop) {
    this.#loop = loop
    this.#batch = new DatagramBatch(libc, outboxCapacity)
  }

  /**
   * Receives what the client's endpoint sent, straight into the outgoing batch. Returns the
   * bytes, or the negative error.
   */
  collect(client: UdpClient, socket: number): number {
    if (socket !== this.#socket || this.#count + perCollect > outboxCapacity) this.run()
    const first = this.#count
    const received = this.#batch.receive(client.fd, first, perCollect)
    if (received <= 0) return received
    if (first === 0) this.#loop.later(this)
    this.#socket = socket
    this.#count = first + received
    let bytes = 0
    for (let index = first; index < this.#count; index++) {
      const length = this.#batch.length(index)
      this.#batch.prepare(index, length, client.address, client.asked)
      bytes += length
    }
    return bytes
  }

  /** Sends everything. What cannot be sent is lost, as datagrams may be. */
  run(): void {
    let first = 0
    while (first < this.#count) {
      const sent = this.#batch.send(this.#socket, first, this.#count)
      if (sent === -errno.EAGAIN) break
      // An error is that of the first datagram; those behind it may still go.
      first += Math.max(sent, 1)
    }
    this.#count = 0
  }

  /** Before the service socket closes. */
  flush(socket: number): void {
    if (socket === this.#socket) this.run()
    this.#socket = -1
  }
}

const outboxCapacity = 64
const perCollect = 8
