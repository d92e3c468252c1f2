import { setTimeout as sleep } from 'node:timers/promises'
import type { Worker } from 'node:worker_threads'
import { KernelError, messageOf } from '../../../errors.js'
import { startThread } from '../../../engine.js'
import { DescriptorBudget } from '../datapath/descriptors.js'
import type {
  Outcome,
  Tasks,
  WorkerAnswer,
  WorkerData,
  WorkerReport,
  WorkerSettings,
} from './messages.js'

interface WorkerThreadObserver {
  reported(report: WorkerReport): void
  /** The thread ended, by an error or on request. */
  ended(thread: WorkerThread, reason: string): void
}

/** One worker thread, and the tasks it has not answered yet. */
export class WorkerThread {
  /** Whether its data path was created. */
  isReady = false
  readonly #worker: Worker
  #lastId = 0
  #end: KernelError | undefined
  readonly #unfinished = new Map<
    number,
    { readonly resolve: (outcome: Outcome) => void; readonly reject: (error: Error) => void }
  >()

  constructor(settings: WorkerSettings, observer: WorkerThreadObserver) {
    const held = DescriptorBudget.allocate(0)
    const workerData: WorkerData = { ...settings, held }
    const file = new URL('./worker.js', import.meta.url)
    this.#worker = startThread(file, workerData)
    this.#worker.on('message', (message: WorkerAnswer | WorkerReport) => {
      if ('id' in message) {
        this.#unfinished.get(message.id)?.resolve(message)
        this.#unfinished.delete(message.id)
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
      for (const { reject } of this.#unfinished.values()) reject(this.#end)
      this.#unfinished.clear()
      observer.ended(this, reason)
    })
  }

  /**
   * Sends a task in portions. The next portion waits until the one before is done: a thousand
   * Services at once would hold up the thread's connections. Updates go to listeners that have
   * connections, so there is a pause between two portions of updates.
   */
  async perform<Kind extends keyof Tasks>(
    kind: Kind,
    items: readonly Tasks[Kind][],
  ): Promise<Required<Outcome>> {
    const outcomes: Outcome[] = []
    for (let start = 0; start < items.length; start += itemsPerPortion) {
      if (kind === 'update' && start > 0) await sleep(betweenUpdatesMs)
      outcomes.push(await this.#ask(kind, items.slice(start, start + itemsPerPortion)))
    }
    return {
      opened: outcomes.flatMap(({ opened = [] }) => opened),
      failed: outcomes.flatMap(({ failed = [] }) => failed),
      descriptors: outcomes.flatMap(({ descriptors = [] }) => descriptors),
    }
  }

  /** Lets connections finish, for at most that long, then ends the thread. */
  async drain(graceMs: number): Promise<void> {
    await this.#ask('drain', [graceMs]).catch(() => undefined)
    await this.#worker.terminate()
  }

  /** A thread that is still starting answers once it is up. */
  #ask<Kind extends keyof Tasks>(kind: Kind, items: readonly Tasks[Kind][]): Promise<Outcome> {
    if (this.#end) return Promise.reject(this.#end)
    const id = ++this.#lastId
    return new Promise((resolve, reject) => {
      this.#unfinished.set(id, { resolve, reject })
      this.#worker.postMessage({ kind, id, items })
    })
  }
}

/** A portion of this size takes about 80 us of the worker's time. */
const itemsPerPortion = 32
const betweenUpdatesMs = 1
