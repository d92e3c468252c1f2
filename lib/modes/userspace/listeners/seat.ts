import { setTimeout as sleep } from 'node:timers/promises'
import type { Worker } from 'node:worker_threads'
import type { KernelError } from '../../../errors.js'
import { endpointChanges, type ListenerSpec, type Target } from '../datapath/datapath.js'
import type { FromWorker, ListenerChanges, OpenOutcome, Portion, ToWorker } from './messages.js'

/** `Omit` that keeps the alternatives of a union apart. */
type WithoutId<T> = T extends unknown ? Omit<T, 'id'> : never

/** One worker, what it was told, and the questions it has not answered yet. */
export class Seat {
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

  /**
   * Tells the worker what is new to it, a portion when it is done with the one before: a thousand
   * Services at once would hold up its connections. Listeners that change have connections, so
   * there is a moment for these in between.
   */
  async change({ open, update, close, handOver = [] }: ListenerChanges): Promise<OpenOutcome> {
    const outcomes: FromWorker[] = []
    const tell = async (portion: Partial<Portion>) => {
      const question = { open: [], update: [], close: [], handOver: [], ...portion }
      outcomes.push(await this.ask({ kind: 'change', ...question }))
    }
    for (const keys of portionsOf(close)) {
      for (const key of keys) this.#endpoints.delete(key)
      await tell({ close: keys })
    }
    for (const keys of portionsOf(handOver)) {
      for (const key of keys) this.#endpoints.delete(key)
      await tell({ handOver: keys })
    }
    for (const [index, specs] of [...portionsOf(update)].entries()) {
      if (index > 0) await sleep(betweenUpdatesMs)
      await tell({ update: specs.map(this.#update) })
    }
    for (const specs of portionsOf(open)) {
      for (const { key, endpoints } of specs) this.#endpoints.set(key, endpoints)
      await tell({ open: specs })
    }
    return merged(outcomes.flatMap((outcome) => (outcome.kind === 'changed' ? outcome : [])))
  }

  readonly #update = (spec: ListenerSpec) => {
    const before = this.#endpoints.get(spec.key) ?? []
    this.#endpoints.set(spec.key, spec.endpoints)
    return [spec.key, endpointChanges(before, spec)] as const
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

export function merged(outcomes: readonly OpenOutcome[]): OpenOutcome {
  return {
    opened: outcomes.flatMap(({ opened }) => opened),
    failed: outcomes.flatMap(({ failed }) => failed),
  }
}

function* portionsOf<T>(items: readonly T[]): Iterable<readonly T[]> {
  for (let start = 0; start < items.length; start += listenersPerPortion) {
    yield items.slice(start, start + listenersPerPortion)
  }
}

/** Some 80 us of the worker's time. */
const listenersPerPortion = 32
const betweenUpdatesMs = 1
