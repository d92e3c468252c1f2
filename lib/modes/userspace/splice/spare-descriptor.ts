import { addressFamily } from '../../../kernel/sockets/socket-address.js'
import type { Sockets } from '../../../kernel/sockets/sockets.js'

/**
 * One descriptor kept for the moment when there are no others: without it nobody could even be
 * turned away.
 */
export class SpareDescriptor {
  readonly #sockets: Sockets
  #fd: number

  constructor(sockets: Sockets) {
    this.#sockets = sockets
    this.#fd = sockets.open(addressFamily.IPv4, 'datagram')
  }

  /** Calls `use` with the number free for one descriptor that it must close again, while it returns true. */
  lend(use: () => boolean): void {
    this.close()
    for (let turn = 0; turn < turnsPerLoan && use(); turn++);
    this.#fd = this.#sockets.open(addressFamily.IPv4, 'datagram')
  }

  close(): void {
    if (this.#fd >= 0) this.#sockets.close(this.#fd)
    this.#fd = -1
  }
}

const turnsPerLoan = 64
