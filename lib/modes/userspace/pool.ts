import { Worker } from 'node:worker_threads'
import { KernelError, messageOf } from '../../errors.js'
import type { AccessEntry, DataPathName, Target } from './datapath.js'
import { endpointChanges } from './endpoint-changes.js'
import {
  pack,
  type FromWorker,
  type HeldDescriptor,
  type ListenerChanges,
  type OpenFailure,
  type OpenOutcome,
  type ToWorker,
  type WorkerSettings,
} from './messages.js'
import type { ListenerCounts } from './traffic.js'

export interface PoolOptions extends WorkerSettings {
  readonly workers: number
}

/** Who wants to know what the workers report. */
export interface PoolObserver {
  ready(dataPath: DataPathName, note: string): void
  counts(counts: readonly ListenerCounts[]): void
  access(entries: readonly AccessEntry[]): void
  warning(message: string, repeated: number): void
  /** A worker died and its listeners with it; the pool has already started another. */
  lost(reason: string, wasThere: (key: string) => boolean): void
}

/**
 * The worker threads. A listener belongs to one of them by the hash of its key, so that round
 * robin and affinity need no shared state, and stays there as long as it lives.
 */
export class WorkerPool {
  readonly #options: PoolOptions
  readonly #observer: PoolObserver
  readonly #seats: Seat[]
  #isClosed = false

  constructor(options: PoolOptions, observer: PoolObserver) {
    this.#options = options
    this.#observer = observer
    this.#seats = Array.from({ length: options.workers }, () => this.#start())
  }

  /** Throws KernelError when a worker cannot start or dies meanwhile. */
  async change(changes: ListenerChanges): Promise<OpenOutcome> {
    const { open, update, close, handOver = [] } = changes
    const outcomes = await Promise.all(
      this.#seats.flatMap((seat, index) => {
        const isHere = (key: string) => seatOf(key, this.#seats.length) === index
        const part = {
          open: open.filter(({ key }) => isHere(key)),
          update: update.filter(({ key }) => isHere(key)),
          close: close.filter(isHere),
          handOver: handOver.filter(isHere),
        }
        if (Object.values(part).every(({ length }) => length === 0)) return []
        return [seat.change(part)]
      }),
    )
    const opened: { key: string; port: number }[] = []
    const failed: OpenFailure[] = []
    for (const outcome of outcomes) {
      if (outcome.kind !== 'changed') continue
      opened.push(...outcome.opened)
      failed.push(...outcome.failed)
    }
    return { opened, failed }
  }

  /** The sockets of these listeners, as far as they are known. */
  async descriptors(keys: readonly string[]): Promise<readonly HeldDescriptor[]> {
    const answers = await Promise.all(
      this.#seats.map((seat, index) =>
        seat.ask({
          kind: 'descriptors',
          keys: keys.filter((key) => seatOf(key, this.#seats.length) === index),
        }),
      ),
    )
    return answers.flatMap((answer) => (answer.kind === 'descriptors' ? answer.descriptors : []))
  }

  /** Lets connections finish, for at most that long, then ends the threads. */
  async close(graceMs: number): Promise<void> {
    this.#isClosed = true
    await Promise.allSettled(this.#seats.map((seat) => seat.ask({ kind: 'drain', graceMs })))
    await Promise.all(this.#seats.map((seat) => seat.worker.terminate()))
  }

  #start(): Seat {
    const { dataPath, passiveHealth, accessLog, descriptors } = this.#options
    const workerData: WorkerSettings = { dataPath, passiveHealth, accessLog, descriptors }
    const worker = new Worker(new URL('./worker.js', import.meta.url), { workerData, execArgv: [] })
    const seat = new Seat(worker, (message) => this.#received(message))
    let error: unknown
    worker.on('error', (cause) => (error = cause))
    worker.on('exit', () => {
      const reason = `userspace worker ended: ${error ? messageOf(error) : 'exit'}`
      seat.lost(new KernelError('failed', reason, { cause: error }))
      // One that never became ready would not do better the second time.
      if (this.#isClosed || !seat.isReady) return
      const index = this.#seats.indexOf(seat)
      this.#seats[index] = this.#start()
      this.#observer.lost(reason, (key) => seatOf(key, this.#seats.length) === index)
    })
    return seat
  }

  #received(message: FromWorker): void {
    switch (message.kind) {
      case 'ready':
        this.#observer.ready(message.dataPath, message.note)
        break
      case 'counts':
        this.#observer.counts(message.counts)
        break
      case 'access':
        this.#observer.access(message.entries)
        break
      case 'warning':
        this.#observer.warning(message.message, message.repeated)
        break
      case 'changed':
      case 'descriptors':
      case 'drained':
        break
    }
  }
}

/** `Omit` that keeps the alternatives of a union apart. */
type WithoutId<T> = T extends unknown ? Omit<T, 'id'> : never

/** One worker, what it was told, and the questions it has not answered yet. */
class Seat {
  readonly worker: Worker
  isReady = false
  /** The endpoints of its listeners, as they are when all its messages are worked off. */
  readonly #endpoints = new Map<string, readonly Target[]>()
  #lastId = 0
  #end: KernelError | undefined
  readonly #waiting = new Map<
    number,
    { readonly resolve: (answer: FromWorker) => void; readonly reject: (error: Error) => void }
  >()

  constructor(worker: Worker, received: (message: FromWorker) => void) {
    this.worker = worker
    worker.on('message', (message: FromWorker) => {
      if (message.kind === 'ready') this.isReady = true
      if ('id' in message) {
        this.#waiting.get(message.id)?.resolve(message)
        this.#waiting.delete(message.id)
      } else received(message)
    })
  }

  /** Tells the worker what is new to it. */
  change({ open, update, close, handOver = [] }: ListenerChanges): Promise<FromWorker> {
    for (const key of [...close, ...handOver]) this.#endpoints.delete(key)
    const updates = update.map((spec) => {
      const changes = endpointChanges(this.#endpoints.get(spec.key) ?? [], spec)
      return pack([spec.key, changes] as const)
    })
    for (const { key, endpoints } of [...open, ...update]) this.#endpoints.set(key, endpoints)
    return this.ask({ kind: 'change', open: open.map(pack), update: updates, close, handOver })
  }

  /** Asked before the worker is up, the question waits in its port. */
  ask(question: WithoutId<ToWorker>): Promise<FromWorker> {
    if (this.#end) return Promise.reject(this.#end)
    const id = ++this.#lastId
    return new Promise((resolve, reject) => {
      this.#waiting.set(id, { resolve, reject })
      this.worker.postMessage({ ...question, id })
    })
  }

  lost(error: KernelError): void {
    this.#end = error
    for (const { reject } of this.#waiting.values()) reject(error)
    this.#waiting.clear()
  }
}

/** FNV-1a. */
function seatOf(key: string, seats: number): number {
  let hash = 0x811c9dc5
  for (let index = 0; index < key.length; index++) {
    hash = Math.imul(hash ^ key.charCodeAt(index), 0x01000193)
  }
  return (hash >>> 0) % seats
}
