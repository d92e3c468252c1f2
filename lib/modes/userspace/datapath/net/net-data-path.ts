import { youthMs, type DataPath, type DataPathDeps } from '../datapath.js'
import { dataPathOf } from '../listener.js'
import type { TcpConnection } from './tcp-connection.js'
import { TcpListener } from './tcp.js'
import { TimeoutQueue } from '../timeout-queue.js'
import { UdpClientTable } from '../udp-client-table.js'
import type { UdpClient } from './udp-clients.js'
import { UdpListener } from './udp.js'

/** The portable data path, on node:net and node:dgram: the one to read first. */
export function createNetDataPath(deps: DataPathDeps): DataPath {
  const udpClients = new UdpClientTable<UdpClient>(deps.now)
  const young = new TimeoutQueue<TcpConnection>(youthMs, deps.now, (connection) =>
    connection.cameOfAge(),
  )
  return dataPathOf('net', (spec) =>
    spec.protocol === 'TCP'
      ? new TcpListener(spec, deps, young)
      : new UdpListener(spec, deps, udpClients),
  )
}
