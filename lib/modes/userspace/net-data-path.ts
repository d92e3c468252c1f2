import type { DataPath, DataPathDeps } from './datapath.js'
import { dataPathOf } from './listener.js'
import { TcpListener } from './tcp.js'
import { UdpClientTable } from './udp-client-table.js'
import type { UdpClient } from './udp-clients.js'
import { UdpListener } from './udp.js'

/** The portable data path, on node:net and node:dgram: the one to read first. */
export function createNetDataPath(deps: DataPathDeps): DataPath {
  const udpClients = new UdpClientTable<UdpClient>(deps.now)
  return dataPathOf('net', (spec) =>
    spec.protocol === 'TCP' ? new TcpListener(spec, deps) : new UdpListener(spec, deps, udpClients),
  )
}
