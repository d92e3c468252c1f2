import { loadLibc } from '../../../kernel/sockets/libc.js'
import type { DataPath, DataPathDeps } from '../datapath.js'
import { createContext } from './context.js'
import type { Listener } from './listener.js'
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
    const open = new Map<string, Listener>()
    /** Stopped ones whose connections go on; they still have bytes to report. */
    const stopping = new Set<Listener>()

    const stop = (listener: Listener) => {
      listener.stop()
      stopping.add(listener)
      void listener.idle.then(() => stopping.delete(listener))
    }

    return {
      name: 'splice',
      async open(spec) {
        const listener =
          spec.protocol === 'TCP' ? new TcpListener(spec, context) : new UdpListener(spec, context)
        const port = await listener.listen()
        open.set(spec.key, listener)
        return port
      },
      update(spec) {
        open.get(spec.key)?.update(spec)
      },
      close(key) {
        const listener = open.get(key)
        open.delete(key)
        if (listener) stop(listener)
        return Promise.resolve()
      },
      async drain(graceMs) {
        for (const listener of open.values()) stop(listener)
        open.clear()
        const draining = [...stopping]
        const timer = setTimeout(() => {
          for (const listener of draining) listener.cut()
        }, graceMs)
        await Promise.all(draining.map((listener) => listener.idle))
        clearTimeout(timer)
        context.flowTools.pool.close()
      },
      takeCounts() {
        return [...open.values(), ...stopping].flatMap((listener) => listener.takeCounts() ?? [])
      },
    }
  }
}
