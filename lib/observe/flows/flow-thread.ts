import type { Worker } from 'node:worker_threads'
import { messageOf } from '../../errors.js'
import { startThread } from '../../engine.js'
import type {
  FlowThreadSettings,
  FlowNumbers,
  FromFlowThread,
  PresentEndpoints,
  ToFlowThread,
} from './messages.js'

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
    this.#worker = startThread(file, workerData)
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

  /** Returns false when the thread has ended. */
  tell(message: Exclude<ToFlowThread, { readonly id: number }>): boolean {
    if (!this.#hasEnded) this.#worker.postMessage(message)
    return !this.#hasEnded
  }

  /** Undefined when the thread has ended. */
  async numbers(present: readonly PresentEndpoints[]): Promise<FlowNumbers | undefined> {
    const answer = await this.#ask({ kind: 'numbers', present })
    return answer?.kind === 'numbers' ? answer : undefined
  }

  /** Resolves when the thread has saved its numbers, and leaves what only one process can have. */
  async leave(): Promise<void> {
    // Perhaps nothing else keeps the process alive until then.
    this.#worker.ref()
    await this.#ask({ kind: 'leave' })
  }

  /** Resolves when the thread has saved its last numbers. */
  async stop(): Promise<void> {
    this.#worker.ref()
    await this.#ask({ kind: 'stop' })
    await this.#worker.terminate()
  }

  #ask(question: WithoutId<Extract<ToFlowThread, { readonly id: number }>>) {
    if (this.#hasEnded) return Promise.resolve(undefined)
    const id = ++this.#lastId
    return new Promise<FromFlowThread | undefined>((resolve) => {
      this.#waiting.set(id, resolve)
      this.#worker.postMessage({ ...question, id })
    })
  }
}
