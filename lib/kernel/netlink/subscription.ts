import { pause } from '../../async.js'
import { forEachMessage, type Message } from './message-reader.js'
import { openSocket, type OpenPipe, type SocketOptions } from './socket.js'

export interface SubscriptionOptions extends SocketOptions {
  readonly groups: readonly number[]
  /** The time between two looks at the socket; each look costs a microsecond. */
  readonly everyMs: number
  /** The payload is valid during the call only. */
  readonly onMessage: (message: Message) => void
  /** The kernel dropped notifications, so the caller has to read the objects again. */
  readonly onOverrun: () => void
  /** All notifications until now were read. */
  readonly onEmpty?: () => void
  readonly openPipe?: OpenPipe
}

/** Other work runs after this many datagrams. */
const datagramsPerLook = 256

/**
 * A socket that has joined multicast groups. It gets every notification from the moment it exists.
 */
interface Subscription {
  /**
   * Leaves the groups while `act` runs. As long as any socket listens, the kernel writes a
   * notification for each object of a transaction, which takes longer than the transaction itself.
   */
  deaf<T>(act: () => Promise<T>): Promise<T>
  /** Delivers notifications until the signal, then closes the socket. */
  run(signal: AbortSignal): Promise<void>
}

/**
 * Listens to multicast groups. Node can wait for a netlink socket only with a thread of its pool, so
 * the socket is read at intervals instead. That is enough for notifications that start a check.
 */
export function subscribe(protocol: number, options: SubscriptionOptions): Subscription {
  const pipe = (options.openPipe ?? openSocket)(protocol, options)
  let isDeaf = false
  const look = () => {
    if (isDeaf) {
      // This process may have lost its rights, and may have them again.
      if (!pipe.hear(true)) return
      isDeaf = false
      options.onOverrun()
    }
    for (let count = 0; count < datagramsPerLook; count++) {
      const received = pipe.receive()
      if (received.kind === 'nothing') return options.onEmpty?.()
      if (received.kind === 'overrun') options.onOverrun()
      else forEachMessage(received.data, options.onMessage)
    }
  }
  return {
    async deaf(act) {
      pipe.hear(false)
      try {
        return await act()
      } finally {
        isDeaf = !pipe.hear(true)
      }
    },
    async run(signal) {
      try {
        while (!signal.aborted) {
          look()
          await pause(options.everyMs, signal)
        }
      } finally {
        pipe.close()
      }
    },
  }
}
