import { Worker } from 'node:worker_threads'
import { KernelError, messageOf } from '../../../errors.js'
import type { AccessEntry, DataPathName, ListenerSpec } from '../datapath/datapath.js'
import type {
  FromWorker,
  HeldDescriptor,
  ListenerChanges,
  OpenOutcome,
  WorkerSettings,
} from './messages.js'
import { merged, Seat } from './seat.js'
import type { ListenerCounts } from '../datapath/traffic.js'

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
    const parts = this.#seats.map(() => ({
      open: [] as ListenerSpec[],
      update: [] as ListenerSpec[],
      close: [] as string[],
      handOver: [] as string[],
    }))
    const count = parts.length
    for (const spec of changes.open) parts[seatOf(spec.key, count)]?.open.push(spec)
    for (const spec of changes.update) parts[seatOf(spec.key, count)]?.update.push(spec)
    for (const key of changes.close) parts[seatOf(key, count)]?.close.push(key)
    for (const key of changes.handOver ?? []) parts[seatOf(key, count)]?.handOver.push(key)
    const outcomes = await Promise.all(
      this.#seats.flatMap((seat, index) => {
        const part = parts[index]
        return part ? [seat.change(part)] : []
      }),
    )
    return merged(outcomes)
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

/** FNV-1a. */
function seatOf(key: string, seats: number): number {
  let hash = 0x811c9dc5
  for (let index = 0; index < key.length; index++) {
    hash = Math.imul(hash ^ key.charCodeAt(index), 0x01000193)
  }
  return (hash >>> 0) % seats
}
