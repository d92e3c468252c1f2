import { pause } from '../async.js'

/** Longer than anybody waits between two readings of metrics. */
const usualIdleMs = 600_000

/**
 * Reads what the kernel and threads count, when metrics are asked for. They give up the numbers of
 * a Service that is gone only at a reading, and would keep all of them on a node whose metrics
 * nobody reads. So there they are read now and then. Beside a reader that would be wrong: it could
 * miss the last numbers of an endpoint.
 */
export class TrafficReading {
  readonly #work: () => Promise<unknown>
  readonly #idleMs: number
  #readAt = performance.now()

  /** `work` never rejects. */
  constructor(work: () => Promise<unknown>, idleMs = usualIdleMs) {
    this.#work = work
    this.#idleMs = idleMs
  }

  async read(): Promise<void> {
    this.#readAt = performance.now()
    await this.#work()
  }

  async run(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      const left = this.#readAt + this.#idleMs - performance.now()
      if (left <= 0) await this.read()
      else await pause(left, signal)
    }
  }
}
