import { DatagramBatch } from '../../../../kernel/sockets/datagrams.js'
import { allocateNative, type Libc } from '../../../../kernel/sockets/libc.js'
import { Pipes } from '../../../../kernel/sockets/pipe.js'
import { encodeAddress } from '../../../../kernel/sockets/socket-address.js'
import { Sockets } from '../../../../kernel/sockets/sockets.js'
import { dialTimeoutsMs, keepAliveStartMs, type DataPathDeps, type Target } from '../data-path.js'
import { EventLoop } from './event-loop.js'
import { scratchBytes, type FlowTools } from './flow.js'
import { PipePool } from './pipe-pool.js'
import { TimeoutQueue } from '../timeout-queue.js'
import { UdpClientTable } from '../udp-client-table.js'
import { UdpOutbox } from './udp-outbox.js'

/** A connection as the queues of time-outs need it. */
export interface TimedConnection {
  dialTimedOut(): void
  keepAliveDue(): void
}

/** What all listeners and connections of one worker share. */
export interface SpliceContext {
  readonly deps: DataPathDeps
  readonly loop: EventLoop
  readonly sockets: Sockets
  readonly flowTools: FlowTools
  /** Connections whose endpoint has not answered yet, by the number of the attempt. */
  readonly dialing: readonly TimeoutQueue<TimedConnection>[]
  /** Connections without keep-alive, because most end soon. */
  readonly awaitingKeepAlive: TimeoutQueue<TimedConnection>
  readonly udpClients: UdpClientTable
  /** Datagrams from clients on their way to endpoints. */
  readonly inbox: DatagramBatch
  readonly outbox: UdpOutbox
  /** The endpoint's address in the kernel's form. */
  readonly addressOf: (target: Target) => Uint8Array
}

export function createContext(deps: DataPathDeps, libc: Libc): SpliceContext {
  const sockets = new Sockets(libc)
  const pipes = new Pipes(libc)
  const addresses = new WeakMap<Target, Uint8Array>()
  const loop = new EventLoop(libc)
  return {
    deps,
    sockets,
    loop,
    flowTools: {
      sockets,
      pipes,
      pool: new PipePool(pipes, deps.descriptors),
      scratch: allocateNative(libc, scratchBytes),
    },
    dialing: dialTimeoutsMs.map(
      (durationMs) =>
        new TimeoutQueue<TimedConnection>(durationMs, deps.now, (connection) =>
          connection.dialTimedOut(),
        ),
    ),
    awaitingKeepAlive: new TimeoutQueue<TimedConnection>(keepAliveStartMs, deps.now, (connection) =>
      connection.keepAliveDue(),
    ),
    udpClients: new UdpClientTable(deps.now),
    inbox: new DatagramBatch(libc, inboxCapacity),
    outbox: new UdpOutbox(libc, loop),
    addressOf(target) {
      let address = addresses.get(target)
      if (!address) addresses.set(target, (address = encodeAddress(target)))
      return address
    },
  }
}

const inboxCapacity = 64
