import { hashOf } from '../../../state/persistent-map.js'
import { DescriptorBudget, listenAdvice } from '../datapath/descriptors.js'
import { endpointChanges, type ListenerSpec } from '../datapath/data-path.js'
import type { OpenFailure, Outcome, Tasks, WorkerReport, WorkerSettings } from './messages.js'
import type { Meter } from '../../mode.js'
import { PortAllocator } from './port-allocator.js'
import { WorkerThread } from './worker-thread.js'

/** An open socket on its way from one process to the next. */
export interface GivenListener {
  readonly key: string
  readonly protocol: string
  readonly address: string
  readonly port: number
  readonly descriptor: number
}

interface ListenersOptions extends WorkerSettings {
  readonly workers: number
  /** Where proxy ports come from; undefined leaves it to the kernel (US31). */
  readonly range: { readonly from: number; readonly to: number } | undefined
  readonly meter: Meter
}

/** Gets what happens at the listeners. */
interface ListenersObserver {
  reported(report: WorkerReport): void
  /** A listener was closed for good. */
  closed(key: string): void
  /** A worker and its listeners ended. A new worker has already started. */
  lost(reason: string, keys: readonly string[]): void
  /** There were no descriptors for `missing` listeners. */
  crowded?(fits: { readonly missing: number; readonly open: number }): void
}

interface Listener {
  /** The spec that its worker has after all messages sent so far. */
  readonly spec: ListenerSpec
  /** Before it is open: the port to ask for, 0 for any. */
  readonly port: number
  readonly isOpen: boolean
}

/** How many ports of the range are tried in one sync while other programs hold them. */
const maxOpenRounds = 16

/**
 * The listeners, their ports and their worker threads. A listener belongs to one thread by the hash
 * of its key, so that round robin and affinity need no shared state. It stays there, and keeps its
 * port, as long as it lives.
 */
export class Listeners {
  readonly descriptors: DescriptorBudget
  readonly #options: ListenersOptions
  readonly #observer: ListenersObserver
  readonly #threads: WorkerThread[]
  readonly #ports: PortAllocator | undefined
  readonly #listeners = new Map<string, Listener>()
  /** Sockets that were taken over from another process and are not yet in use here. */
  readonly #given = new Map<string, GivenListener>()
  /** The largest number of listeners without descriptors that was reported. */
  #missing = 0
  #isDraining = false

  constructor(options: ListenersOptions, observer: ListenersObserver) {
    this.#options = options
    this.descriptors = new DescriptorBudget(options.descriptors)
    this.#observer = observer
    this.#ports = options.range ? new PortAllocator(options.range) : undefined
    this.#threads = Array.from({ length: options.workers }, () => this.#startThread())
  }

  /** Undefined while the listener is not open. */
  portOf(key: string): number | undefined {
    const listener = this.#listeners.get(key)
    return listener?.isOpen ? listener.port : undefined
  }

  /** The ports of all listeners, also of those that have drained. */
  get ports(): ReadonlySet<number> {
    return new Set([...this.#listeners.values()].map(({ port }) => port))
  }

  /**
   * Opens listeners that are not open, and sends changed specs to the workers. Resolves to the
   * listeners that could not be opened. Throws a KernelError when a worker cannot start or ends
   * meanwhile.
   */
  async ensure(specs: readonly ListenerSpec[]): Promise<readonly OpenFailure[]> {
    const changed = specs.flatMap((spec) => this.#update(spec))
    await this.#perform('update', changed, ([key]) => key)
    const failures = await this.#open(specs.filter(({ key }) => this.portOf(key) === undefined))
    this.#countOpen()
    for (const { code } of failures) {
      this.#options.meter.count('userspace_listen_failures_total', { reason: code })
    }
    const missing = failures.filter(({ code }) => code === 'EMFILE').length
    // Retries do not repeat the number.
    if (missing > this.#missing) this.#observer.crowded?.({ missing, open: this.#listeners.size })
    this.#missing = Math.max(missing, this.#missing)
    return failures
  }

  /** Tells every thread where these Services answer, so that no endpoint leads back there. */
  async note(services: readonly Tasks['frontends'][]): Promise<void> {
    await Promise.all(this.#threads.map((thread) => thread.perform('frontends', services)))
  }

  async close(keys: readonly string[]): Promise<void> {
    const close = keys.filter((key) => this.#forget(key)?.isOpen)
    await this.#perform('close', close)
    // A listener may have ended with its worker before.
    for (const key of keys) this.#observer.closed(key)
    this.#countOpen()
  }

  /** See DataPath. */
  async cut(addresses: readonly string[]): Promise<void> {
    await Promise.all(this.#threads.map((thread) => thread.perform('cut', addresses)))
  }

  /**
   * Gives every listener to another process. `copy` makes a copy of a socket, which stays open when
   * the worker closes the socket. Established connections stay in this process.
   */
  async give(copy: (descriptor: number) => number): Promise<readonly GivenListener[]> {
    const outcomes = await this.#perform('descriptors', [...this.#listeners.keys()])
    const given: GivenListener[] = []
    for (const { key, descriptor } of outcomes.flatMap(({ descriptors }) => descriptors)) {
      const listener = this.#listeners.get(key)
      const copied = listener ? copy(descriptor) : -1
      if (!listener || copied < 0) continue
      const { protocol, address } = listener.spec
      given.push({ key, protocol, address, port: listener.port, descriptor: copied })
      this.#forget(key)
    }
    const keys = given.map(({ key }) => key)
    await this.#perform('handOver', keys)
    return given
  }

  /** Keeps sockets for the next `ensure`. A listener uses the one with its key and address. */
  receive(given: readonly GivenListener[]): void {
    for (const listener of given) this.#given.set(listener.key, listener)
  }

  /** The received sockets that no listener needed. The caller has to close them. */
  unused(): readonly GivenListener[] {
    const unused = [...this.#given.values()]
    this.#given.clear()
    return unused
  }

  /** Lets connections finish, for at most that long, then ends the threads. */
  async drain(graceMs: number): Promise<void> {
    this.#isDraining = true
    await Promise.all(this.#threads.map((thread) => thread.drain(graceMs)))
  }

  /** The message about a changed spec, for the listener's worker. None while it is not open. */
  #update(spec: ListenerSpec): readonly Tasks['update'][] {
    const listener = this.#listeners.get(spec.key)
    if (!listener?.isOpen || listener.spec === spec) return []
    this.#listeners.set(spec.key, { ...listener, spec })
    return [[spec.key, endpointChanges(listener.spec.endpoints, spec)]]
  }

  /** Opens listeners. A port of the range that another program holds is replaced by the next. */
  async #open(specs: readonly ListenerSpec[]): Promise<readonly OpenFailure[]> {
    const failures: OpenFailure[] = []
    const avoid = new Set<number>()
    let left = specs
    for (let round = 1; left.length > 0; round++) {
      const again: ListenerSpec[] = []
      const numbered = this.#number(left, avoid, failures)
      const outcomes = await this.#perform('open', numbered, ({ key }) => key)
      for (const failure of outcomes.flatMap(({ failed }) => failed)) {
        const listener = this.#forget(failure.key)
        const isFromRange = this.#ports !== undefined && listener?.spec.port === 0
        if (isFromRange && failure.code === 'EADDRINUSE' && round < maxOpenRounds) {
          avoid.add(listener.port)
          again.push(listener.spec)
        } else failures.push(failure)
      }
      left = again
    }
    return failures
  }

  /** The specs as a worker gets them: with the port to listen on, or an open socket to use. */
  #number(
    specs: readonly ListenerSpec[],
    avoid: ReadonlySet<number>,
    failures: OpenFailure[],
  ): readonly ListenerSpec[] {
    return specs.flatMap((spec) => {
      const { key } = spec
      if (!this.descriptors.tryListen()) {
        failures.push({ key, code: 'EMFILE', message: listenAdvice })
        return []
      }
      const given = this.#takeGiven(spec)
      const isFromRange = this.#ports !== undefined && spec.port === 0
      const port = given?.port ?? (isFromRange ? this.#ports.take(avoid) : spec.port)
      if (port === undefined) {
        this.descriptors.stopListening()
        const message = 'no port of --proxy-port-range is free; widen the range'
        failures.push({ key, code: 'ERANGE', message })
        return []
      }
      this.#listeners.set(key, { spec, port, isOpen: false })
      return { ...spec, port, ...(given ? { descriptor: given.descriptor } : {}) }
    })
  }

  #takeGiven(spec: ListenerSpec): GivenListener | undefined {
    const given = this.#given.get(spec.key)
    if (given?.protocol !== spec.protocol || given.address !== spec.address) return undefined
    // Only a port that nobody chose has to be one of the range.
    const fits = spec.port === 0 ? this.#ports?.keep(given.port) : spec.port === given.port
    if (fits === false) return undefined
    this.#given.delete(spec.key)
    return given
  }

  /** Sends each thread its part and waits for all threads, also when one ends meanwhile. */
  async #perform<Kind extends keyof Tasks>(
    kind: Kind,
    items: readonly Tasks[Kind][],
    keyOf: (item: Tasks[Kind]) => string = String,
  ): Promise<readonly Required<Outcome>[]> {
    const parts = this.#threads.map((thread) => ({ thread, items: [] as Tasks[Kind][] }))
    for (const item of items) parts[indexOf(keyOf(item), parts.length)]?.items.push(item)
    const outcomes = parts.map(async (part) => {
      const outcome = await part.thread.perform(kind, part.items)
      for (const { key, port } of outcome.opened) {
        const listener = this.#listeners.get(key)
        if (listener) this.#listeners.set(key, { ...listener, port, isOpen: true })
      }
      return outcome
    })
    await Promise.allSettled(outcomes)
    return Promise.all(outcomes)
  }

  #forget(key: string): Listener | undefined {
    const listener = this.#listeners.get(key)
    if (listener) {
      if (listener.spec.port === 0) this.#ports?.release(listener.port)
      this.descriptors.stopListening()
    }
    this.#listeners.delete(key)
    return listener
  }

  #countOpen(): void {
    this.#options.meter.gauge('userspace_listeners', {}, this.#listeners.size)
  }

  #startThread(): WorkerThread {
    const { workers, range, meter, ...settings } = this.#options
    return new WorkerThread(settings, {
      reported: (report) => this.#observer.reported(report),
      ended: (thread, reason) => this.#replace(thread, reason),
    })
  }

  /** Forgets the listeners of a thread that ended. The next `ensure` opens them again. */
  #replace(thread: WorkerThread, reason: string): void {
    const index = this.#threads.indexOf(thread)
    const keys = [...this.#listeners.keys()]
    const lost = keys.filter((key) => indexOf(key, this.#threads.length) === index)
    for (const key of lost) this.#forget(key)
    // A thread that never became ready would fail again.
    if (this.#isDraining || !thread.isReady) return
    this.#threads[index] = this.#startThread()
    this.#observer.lost(reason, lost)
  }
}

/** The number of the thread that a key belongs to. */
function indexOf(key: string, threads: number): number {
  return hashOf(key) % threads
}
