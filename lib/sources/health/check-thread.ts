import type { Worker } from 'node:worker_threads'
import { messageOf } from '../../errors.js'
import { startThread } from '../../engine.js'
import { aborted } from '../../async.js'
import type { CheckReport, CheckTarget, TargetChanges } from './messages.js'

export interface CheckThreadOptions {
  /** All endpoints to check now. A new thread is told all of them. */
  readonly targets: () => Iterable<CheckTarget>
  readonly reported: (report: CheckReport) => void
  readonly ended: (reason: string) => void
}

const restartMs = 5_000

/**
 * Runs the thread that checks. The thread starts with the first target, so a node without checks
 * has none. Checks have their own thread, because a large sync holds up its thread for longer than
 * a check may take: endpoints that answered in time would seem to fail.
 */
export class CheckThread {
  readonly #options: CheckThreadOptions
  #worker: Worker | undefined
  #set: CheckTarget[] = []
  #remove: string[] = []
  #restart: NodeJS.Timeout | undefined
  #isOver = false

  constructor(options: CheckThreadOptions) {
    this.#options = options
  }

  set(target: CheckTarget): void {
    this.#set.push(target)
  }

  remove(id: string): void {
    this.#remove.push(id)
  }

  /** Sends the targets that were set and removed. */
  flush(): void {
    const changes = { set: this.#set, remove: this.#remove }
    this.#set = []
    this.#remove = []
    if (this.#isOver || this.#restart) return
    if (this.#worker) {
      if (changes.set.length + changes.remove.length > 0) this.#send(changes)
    } else if (changes.set.length > 0) this.#start()
  }

  /** Resolves once the signal has come and the thread has ended. */
  async run(signal: AbortSignal): Promise<void> {
    await aborted(signal)
    this.#isOver = true
    clearTimeout(this.#restart)
    await this.#worker?.terminate()
  }

  #start(): void {
    const file = new URL('./worker.js', import.meta.url)
    const worker = startThread(file)
    this.#worker = worker
    let error: unknown
    worker.on('message', (report: CheckReport) => this.#options.reported(report))
    worker.on('error', (cause) => (error = cause))
    worker.on('exit', (code) => {
      if (this.#isOver) return
      this.#worker = undefined
      this.#options.ended(error ? messageOf(error) : `exit code ${code}`)
      this.#restart = setTimeout(() => {
        this.#restart = undefined
        this.#start()
      }, restartMs)
    })
    this.#send({ set: [...this.#options.targets()], remove: [] })
  }

  #send(changes: TargetChanges): void {
    this.#worker?.postMessage(changes)
  }
}
