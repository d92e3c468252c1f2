import type { DataPath, DataPathDeps, ListenerSpec } from './datapath.js'
import { TcpListener } from './tcp.js'
import type { ListenerCounts } from './traffic.js'
import { UdpClientTable } from './udp-clients.js'
import { UdpListener } from './udp.js'

/** What this data path asks of its two kinds of listeners. */
export interface Listener {
  listen(): Promise<number>
  update(spec: ListenerSpec): void
  /** Stops listening; what is under way may go on. */
  stop(): void
  /** Ends what is still under way. */
  cut(): void
  /** Resolves when nothing is under way any more. */
  readonly idle: Promise<void>
  takeCounts(): ListenerCounts | undefined
}

/** The portable data path, on node:net and node:dgram: the one to read first. */
export function createNetDataPath(deps: DataPathDeps): DataPath {
  const open = new Map<string, Listener>()
  /** Stopped ones whose connections go on; they still have bytes to report. */
  const stopping = new Set<Listener>()
  const udpClients = new UdpClientTable(deps.now)

  const stop = (listener: Listener) => {
    listener.stop()
    stopping.add(listener)
    void listener.idle.then(() => stopping.delete(listener))
  }

  return {
    name: 'net',
    async open(spec) {
      const listener =
        spec.protocol === 'TCP'
          ? new TcpListener(spec, deps)
          : new UdpListener(spec, deps, udpClients)
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
    },
    takeCounts() {
      return [...open.values(), ...stopping].flatMap((listener) => listener.takeCounts() ?? [])
    },
  }
}
