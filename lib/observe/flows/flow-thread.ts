import { Worker } from 'node:worker_threads'
import { messageOf } from '../../errors.js'
import type { FlowThreadSettings, FlowNumbers, FromFlowThread, ToFlowThread } from './messages.js'

/** `Omit` that keeps the alternatives of a union apart. */
type WithoutId<T> = T extends unknown ? Omit<T, 'id'> : never

export type FlowReport = Extract<
  FromFlowThread,
  { readonly kind: 'ready' | 'failed' | 'warning' | 'lines' }
>

/** The thread that reads connections, and the questions that it has not answered yet. */
export class FlowThread {
  readonly #worker: Worker
  readonly #waiting = new Map<number, (answer: FromFlowThread | undefined) => void>()
  #lastId = 0
  #hasEnded = false

  constructor(workerData: FlowThreadSettings, reported: (report: FlowReport) => void) {
    const file = new URL('./flow-worker.js', import.meta.url)
    this.#worker = new Worker(file, { workerData, execArgv: [] })
    this.#worker.unref()
    this.#worker.on('message', (message: FromFlowThread) => {
      if (!('id' in message)) {
        reported(message)
        return
      }
      this.#waiting.get(message.id)?.(message)
      this.#waiting.delete(message.id)
    })
    let reason = ''
    this.#worker.on('error', (error) => (reason = messageOf(error)))
    this.#worker.on('exit', () => {
      this.#hasEnded = true
      for (const answer of this.#waiting.values()) answer(undefined)
      this.#waiting.clear()
      if (reason !== '') reported({ kind: 'failed', reason })
    })
  }

  tell(message: Extract<ToFlowThread, { readonly kind: 'services' }>): void {
    if (!this.#hasEnded) this.#worker.postMessage(message)
  }

  /** Undefined when the thread has ended. */
  async numbers(): Promise<FlowNumbers | undefined> {
    const answer = await this.#ask({ kind: 'numbers' })
    return answer?.kind === 'numbers' ? answer : undefined
  }

  /** Resolves when the thread has saved its numbers. */
  async stop(): Promise<void> {
    await this.#ask({ kind: 'stop' })
    await this.#worker.terminate()
  }

  #ask(question: WithoutId<Exclude<ToFlowThread, { readonly kind: 'services' }>>) {
    if (this.#hasEnded) return Promise.resolve(undefined)
    const id = ++this.#lastId
    return new Promise<FromFlowThread | undefined>((resolve) => {
      this.#waiting.set(id, resolve)
      this.#worker.postMessage({ ...question, id })
    })
  }
}
