import { setTimeout as sleep } from 'node:timers/promises'
import { Worker } from 'node:worker_threads'
import { KernelError, messageOf } from '../../../errors.js'
import { leaveGoneFolder } from '../../../engine.js'
import { DescriptorBudget } from '../datapath/descriptors.js'
import type {
  HeldDescriptor,
  ListenerChanges,
  OpenOutcome,
  ServiceFrontends,
  ToWorker,
  WorkerAnswer,
  WorkerData,
  WorkerReport,
  WorkerSettings,
} from './messages.js'

/** `Omit` that keeps the alternatives of a union apart. */
type WithoutId<T> = T extends unknown ? Omit<T, 'id'> : never

interface WorkerThreadObserver {
  reported(report: WorkerReport): void
  /** The thread ended, by an error or on request. */
  ended(thread: WorkerThread, reason: string): void
}

/** One worker thread, and the questions it has not answered yet. */
export class WorkerThread {
  /** Whether its data path was created. */
  isReady = false
  readonly #worker: Worker
  #lastId = 0
  #end: KernelError | undefined
  readonly #unanswered = new Map<
    number,
    { readonly resolve: (answer: WorkerAnswer) => void; readonly reject: (error: Error) => void }
  >()

  constructor(settings: WorkerSettings, observer: WorkerThreadObserver) {
    const held = DescriptorBudget.allocate(0)
    const workerData: WorkerData = { ...settings, held }
    const file = new URL('./worker.js', import.meta.url)
    leaveGoneFolder()
    this.#worker = new Worker(file, { workerData, execArgv: [] })
    this.#worker.on('message', (message: WorkerAnswer | WorkerReport) => {
      if ('id' in message) {
        this.#unanswered.get(message.id)?.resolve(message)
        this.#unanswered.delete(message.id)
        return
      }
      if (message.kind === 'ready') this.isReady = true
      observer.reported(message)
    })
    let error: unknown
    this.#worker.on('error', (cause) => (error = cause))
    this.#worker.on('exit', () => {
      new DescriptorBudget(settings.descriptors).takeBack(held)
      const reason = `userspace worker ended: ${error ? messageOf(error) : 'exit'}`
      this.#end = new KernelError('failed', reason, { cause: error })
      for (const { reject } of this.#unanswered.values()) reject(this.#end)
      this.#unanswered.clear()
      observer.ended(this, reason)
    })
  }

  /**
   * Sends changes in portions. The next portion waits until the one before is done: a thousand
   * Services at once would hold up the thread's connections. Updates go to listeners that have
   * connections, so there is a pause between two portions of updates.
   */
  async change({ close, handOver, update, open }: ListenerChanges): Promise<OpenOutcome> {
    const opened: OpenOutcome['opened'][number][] = []
    const failed: OpenOutcome['failed'][number][] = []
    for (const keys of portionsOf(close)) await this.#change({ close: keys })
    for (const keys of portionsOf(handOver)) await this.#change({ handOver: keys })
    for (const [index, updates] of [...portionsOf(update)].entries()) {
      if (index > 0) await sleep(betweenUpdatesMs)
      await this.#change({ update: updates })
    }
    for (const specs of portionsOf(open)) {
      const answer = await this.#change({ open: specs })
      if (answer.kind !== 'changed') continue
      opened.push(...answer.opened)
      failed.push(...answer.failed)
    }
    return { opened, failed }
  }

  /** The sockets of those listeners that this thread has. */
  async descriptors(keys: readonly string[]): Promise<readonly HeldDescriptor[]> {
    const answer = await this.#ask({ kind: 'descriptors', keys })
    return answer.kind === 'descriptors' ? answer.descriptors : []
  }

  async note(services: ServiceFrontends): Promise<void> {
    for (const portion of portionsOf(services)) {
      await this.#ask({ kind: 'frontends', services: portion })
    }
  }

  /** Ends the connections that closed listeners on these addresses have left. */
  async cut(addresses: readonly string[]): Promise<void> {
    await this.#ask({ kind: 'cut', addresses })
  }

  /** Lets connections finish, for at most that long, then ends the thread. */
  async drain(graceMs: number): Promise<void> {
    await this.#ask({ kind: 'drain', graceMs }).catch(() => undefined)
    await this.#worker.terminate()
  }

  #change(portion: Partial<ListenerChanges>): Promise<WorkerAnswer> {
    return this.#ask({
      kind: 'change',
      close: [],
      handOver: [],
      update: [],
      open: [],
      ...portion,
    })
  }

  /** A thread that is still starting answers once it is up. */
  #ask(question: WithoutId<ToWorker>): Promise<WorkerAnswer> {
    if (this.#end) return Promise.reject(this.#end)
    const id = ++this.#lastId
    return new Promise((resolve, reject) => {
      this.#unanswered.set(id, { resolve, reject })
      this.#worker.postMessage({ ...question, id })
    })
  }
}

function* portionsOf<T>(items: readonly T[]): Iterable<readonly T[]> {
  for (let start = 0; start < items.length; start += listenersPerPortion) {
    yield items.slice(start, start + listenersPerPortion)
  }
}

/** A portion of this size takes about 80 us of the worker's time. */
const listenersPerPortion = 32
const betweenUpdatesMs = 1
