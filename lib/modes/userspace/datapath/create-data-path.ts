import { pause } from '../../../async.js'
import { ifPossible, messageOf } from '../../../errors.js'
import { loadLibc } from '../../../kernel/sockets/libc.js'
import { Sockets } from '../../../kernel/sockets/sockets.js'
import {
  keepAliveStartMs,
  type DataPathDeps,
  type DataPathName,
  type EndpointChanges,
  type ListenerSpec,
} from './data-path.js'
import type { Listener } from './listener.js'
import type { TcpConnection } from './net/tcp-connection.js'
import { TcpListener as NetTcpListener } from './net/tcp-listener.js'
import { UdpListener as NetUdpListener } from './net/udp-listener.js'
import { createContext } from './splice/context.js'
import { TcpListener as SpliceTcpListener } from './splice/tcp-listener.js'
import { UdpListener as SpliceUdpListener } from './splice/udp-listener.js'
import type { ListenerCounts } from './traffic.js'
import { TimeoutQueue } from './timeout-queue.js'
import { UdpClientTable } from './udp-client-table.js'

/** Loads each data path. Rejects with a KernelError where it cannot work. */
export const dataPathLoaders: Readonly<
  Record<DataPathName, () => Promise<(deps: DataPathDeps) => DataPath>>
> = {
  net: async () => {
    const libc = await loadLibc().catch(() => undefined)
    return (deps) => {
      const tools = {
        table: new UdpClientTable(deps.now),
        awaitingKeepAlive: new TimeoutQueue<TcpConnection>(keepAliveStartMs, deps.now, (one) =>
          one.keepAliveDue(),
        ),
        sockets: libc && new Sockets(libc),
      }
      return new DataPath({
        name: 'net',
        create: (spec) =>
          spec.protocol === 'TCP'
            ? new NetTcpListener(spec, deps, tools)
            : new NetUdpListener(spec, deps, tools),
      })
    }
  },
  splice: async () => {
    const libc = await loadLibc()
    return (deps) => {
      const context = createContext(deps, libc)
      return new DataPath({
        name: 'splice',
        create: (spec) =>
          spec.protocol === 'TCP'
            ? new SpliceTcpListener(spec, context)
            : new SpliceUdpListener(spec, context),
        drained: () => context.flowTools.pool.shed(),
        aborted: () => context.loop.end(),
      })
    }
  },
}

/** For `auto` the best data path that works here. The note says why better ones do not work. */
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

interface DataPathParts {
  readonly name: DataPathName
  readonly create: (spec: ListenerSpec) => Listener
  /** Called when no connection is left. */
  readonly drained?: () => void
  /** Closes what would outlive the thread; undefined if nothing would. */
  readonly aborted?: () => void
}

/**
 * A data path copies bytes between clients and endpoints. It lives in one worker thread and owns
 * the listeners of that worker. Workers share only a few numbers: those of DescriptorBudget and
 * SourceSwitch. There are two data paths: `net` on Node's own sockets, and `splice` on raw
 * descriptors. Both behave the same, and differ in the listeners that they create.
 */
export class DataPath {
  readonly #parts: DataPathParts
  readonly #open = new Map<string, Listener>()
  /** Listeners that have stopped, while their connections go on. */
  readonly #stopping = new Set<Listener>()
  /** Counts of listeners that are idle for good, while the process is about to end. */
  #last: ListenerCounts[] = []
  #isLeaving = false

  constructor(parts: DataPathParts) {
    this.#parts = parts
  }

  get name(): DataPathName {
    return this.#parts.name
  }

  /**
   * Listens and resolves with the port. Rejects with an error that carries the system's `code`,
   * such as EADDRINUSE; nothing is left behind then.
   */
  async open(spec: ListenerSpec): Promise<number> {
    const listener = this.#parts.create(spec)
    const port = await listener.listen()
    this.#open.set(spec.key, listener)
    // Listeners that were handed over may come back.
    this.#isLeaving = false
    return port
  }

  /** The number of the listener's socket, for a take-over; undefined when unknown. */
  descriptorOf(key: string): number | undefined {
    return this.#open.get(key)?.descriptor
  }

  /** New endpoints or affinity for an open listener; its socket and port stay. */
  update(key: string, changes: EndpointChanges): void {
    this.#open.get(key)?.update(changes)
  }

  /** Stops listening. TCP connections live on (US45); UDP clients end with their socket (US54). */
  close(key: string): void {
    this.#stop(key, 'stop')
  }

  /** Ends the connections that closed listeners on this address have left. */
  cut(address: string): void {
    for (const listener of this.#stopping) {
      if (listener.spec.address === address) listener.cut()
    }
  }

  /**
   * Like `close`, for a listener whose socket another process has too. It stays open until UDP
   * clients have their answers and are idle.
   */
  handOver(key: string): void {
    this.#isLeaving = true
    this.#stop(key, 'handOver')
  }

  /**
   * Stops listening everywhere, lets connections finish and cuts what is left after `graceMs`.
   * Resolves when no connection is left.
   */
  async drain(graceMs: number): Promise<void> {
    this.#isLeaving = true
    for (const key of this.#open.keys()) this.close(key)
    const draining = [...this.#stopping]
    const idle = new AbortController()
    void pause(graceMs, idle.signal).then(() => {
      for (const listener of draining) listener.cut()
    })
    await Promise.all(draining.map((listener) => listener.idle))
    idle.abort()
    this.#parts.drained?.()
  }

  /** Resets and closes what would outlive the thread, before this ends because of a mistake. */
  abort(): void {
    // Node closes its own sockets when the thread ends.
    const { drained, aborted } = this.#parts
    if (!aborted) return
    for (const listener of [...this.#open.values(), ...this.#stopping]) {
      // The mistake may be in this listener. The others close all the same.
      ifPossible(() => {
        listener.stop()
        listener.cut()
      })
    }
    drained?.()
    aborted()
  }

  /** What happened since the last call. Listeners where nothing happened are left out. */
  takeCounts(): readonly ListenerCounts[] {
    const last = this.#last
    this.#last = []
    // A closed listener's numbers are gone, and a late report would bring them back for good.
    const counted = [...this.#open.values(), ...(this.#isLeaving ? this.#stopping : [])]
    return last.concat(counted.flatMap((listener) => listener.takeCounts() ?? []))
  }

  #stop(key: string, how: 'stop' | 'handOver'): void {
    const listener = this.#open.get(key)
    if (!listener) return
    this.#open.delete(key)
    listener[how]()
    this.#stopping.add(listener)
    void listener.idle.then(() => {
      this.#stopping.delete(listener)
      const counts = this.#isLeaving ? listener.takeCounts() : undefined
      if (counts) this.#last.push(counts)
    })
  }
}
