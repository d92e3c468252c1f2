import type { DataPath, DataPathName, ListenerSpec, EndpointChanges } from './datapath.js'
import type { ListenerCounts } from './traffic.js'

/** One open listener: what both data paths, and both protocols, have in common. */
export interface Listener {
  listen(): Promise<number>
  update(changes: EndpointChanges): void
  /** Stops listening; what is under way may go on. */
  stop(): void
  /** Stops listening, with the socket kept open as long as anything under way needs it. */
  handOver(): void
  /** Ends what is still under way. */
  cut(): void
  /** Resolves when nothing is under way any more. */
  readonly idle: Promise<void>
  /** Of its socket; undefined when unknown. */
  readonly descriptor: number | undefined
  takeCounts(): ListenerCounts | undefined
}

/** A data path, made of a way to make its listeners. */
export function dataPathOf(
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
