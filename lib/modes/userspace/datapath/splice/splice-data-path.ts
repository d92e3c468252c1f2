import { loadLibc } from '../../../../kernel/sockets/libc.js'
import type { DataPath, DataPathDeps } from '../datapath.js'
import { dataPathOf } from '../listener.js'
import { createContext } from './context.js'
import { TcpListener } from './tcp-listener.js'
import { UdpListener } from './udp-listener.js'

/**
 * The fast data path, for Linux where koffi loads: raw descriptors, one epoll, bulk spliced
 * within the kernel. Throws KernelError where that is not to be had.
 */
export async function loadSpliceDataPath(): Promise<(deps: DataPathDeps) => DataPath> {
  const libc = await loadLibc()
  return (deps) => {
    const context = createContext(deps, libc)
    return dataPathOf(
      'splice',
      (spec) =>
        spec.protocol === 'TCP' ? new TcpListener(spec, context) : new UdpListener(spec, context),
      () => context.flowTools.pool.shed(),
    )
  }
}
