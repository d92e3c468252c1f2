import { messageOf } from '../../../errors.js'
import { loadLibc } from '../../../kernel/sockets/libc.js'
import {
  youthMs,
  type DataPath,
  type DataPathDeps,
  type DataPathName,
  type Listener,
  type ListenerSpec,
} from './data-path.js'
import type { TcpConnection } from './net/tcp-connection.js'
import { TcpListener as NetTcpListener } from './net/tcp-listener.js'
import type { UdpClient } from './net/udp-client.js'
import { UdpListener as NetUdpListener } from './net/udp-listener.js'
import { createContext } from './splice/context.js'
import { TcpListener as SpliceTcpListener } from './splice/tcp-listener.js'
import { UdpListener as SpliceUdpListener } from './splice/udp-listener.js'
import { TimeoutQueue } from './timeout-queue.js'
import { UdpClientTable } from './udp-client-table.js'

/** How each data path is made; rejects with KernelError where it cannot work. */
export const dataPathLoaders: Readonly<
  Record<DataPathName, () => Promise<(deps: DataPathDeps) => DataPath>>
> = {
  net: () => Promise.resolve(createNetDataPath),
  splice: async () => {
    const libc = await loadLibc()
    return (deps) => {
      const context = createContext(deps, libc)
      return dataPathOf(
        'splice',
        (spec) =>
          spec.protocol === 'TCP'
            ? new SpliceTcpListener(spec, context)
            : new SpliceUdpListener(spec, context),
        () => context.flowTools.pool.shed(),
      )
    }
  },
}

/** The wanted data path, or the best that works here and a note why it is not a better one. */
export async function createDataPath(
  name: DataPathName | 'auto',
  deps: DataPathDeps,
): Promise<{ readonly path: DataPath; readonly note: string }> {
  const candidates: readonly DataPathName[] = name === 'auto' ? ['splice', 'net'] : [name]
  const notes: string[] = []
  for (const candidate of candidates) {
    try {
      const create = await dataPathLoaders[candidate]()
      return { path: create(deps), note: notes.join('; ') }
    } catch (error) {
      notes.push(`data path ${candidate}: ${messageOf(error)}`)
    }
  }
  throw new Error(notes.join('; '))
}

function createNetDataPath(deps: DataPathDeps): DataPath {
  const udpClients = new UdpClientTable<UdpClient>(deps.now)
  const young = new TimeoutQueue<TcpConnection>(youthMs, deps.now, (connection) =>
    connection.cameOfAge(),
  )
  return dataPathOf('net', (spec) =>
    spec.protocol === 'TCP'
      ? new NetTcpListener(spec, deps, young)
      : new NetUdpListener(spec, deps, udpClients),
  )
}

/** A data path that keeps the listeners it creates. */
function dataPathOf(
  name: DataPathName,
  create: (spec: ListenerSpec) => Listener,
  drained: () => void = () => undefined,
): DataPath {
  const open = new Map<string, Listener>()
  /** Stopped ones whose connections go on; they still have bytes to report. */
  const stopping = new Set<Listener>()

  const stop = (listener: Listener, how: 'stop' | 'handOver' = 'stop') => {
    listener[how]()
    stopping.add(listener)
    void listener.idle.then(() => stopping.delete(listener))
  }

  return {
    name,
    async open(spec) {
      const listener = create(spec)
      const port = await listener.listen()
      open.set(spec.key, listener)
      return port
    },
    descriptorOf: (key) => open.get(key)?.descriptor,
    update(key, changes) {
      open.get(key)?.update(changes)
    },
    close(key) {
      const listener = open.get(key)
      open.delete(key)
      if (listener) stop(listener)
      return Promise.resolve()
    },
    handOver(key) {
      const listener = open.get(key)
      open.delete(key)
      if (listener) stop(listener, 'handOver')
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
      drained()
    },
    takeCounts() {
      return [...open.values(), ...stopping].flatMap((listener) => listener.takeCounts() ?? [])
    },
  }
}
