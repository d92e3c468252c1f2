/** The longest time of a timer, 24 days. A timer for more fires after 1 ms instead. */
export const longestTimerMs = 2 ** 31 - 1

/** Ends a pause early. A ring while nobody waits ends the next pause at once. */
export class Bell {
  isRung = false
  /** Called at a ring. One pause at a time listens. */
  onRing: (() => void) | undefined

  ring(): void {
    this.isRung = true
    this.onRing?.()
  }

  /** Forgets the rings until now. */
  silence(): void {
    this.isRung = false
  }
}

/**
 * Resolves after `ms`, or at once at the signal or when the bell rings; never rejects. Written by
 * hand, because an aborted timer of Node makes an error with a stack trace, and waits are frequent.
 */
export function pause(ms: number, signal: AbortSignal | undefined, bell?: Bell): Promise<void> {
  if (signal?.aborted === true || bell?.isRung === true) return Promise.resolve()
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer)
      signal?.removeEventListener('abort', end)
      if (bell) bell.onRing = undefined
      resolve()
    }
    const timer = ms === Infinity ? undefined : setTimeout(end, Math.min(ms, longestTimerMs))
    signal?.addEventListener('abort', end)
    if (bell) bell.onRing = end
  })
}

/**
 * Calls back after `ms`, once this thread has read what arrived until then: a thread that was held up
 * comes to its timers first. The returned function cancels this. Nothing is kept alive by the wait.
 */
export function afterReading(ms: number, then: () => void): () => void {
  let turn: NodeJS.Immediate | undefined
  const timer = setTimeout(() => (turn = setImmediate(then)), ms).unref()
  return () => {
    clearTimeout(timer)
    clearImmediate(turn)
  }
}

/** A pause is so many times as long as the work before it, which so takes at most a tenth of a core. */
export const pauseOfCost = 9

/** A turn of the event loop that takes less had nothing to do. */
const idleTurnMs = 0.3

/** Long work asks its slice of time after each small step, and rests when it is over. */
export class Slice {
  readonly #ms: number
  #ends = 0
  #began = performance.now()
  #workedMs = 0

  constructor(ms = 5) {
    this.#ms = ms
  }

  /** The time until now, without the rests. */
  get workedMs(): number {
    return this.#workedMs + performance.now() - this.#began
  }

  get isOver(): boolean {
    return performance.now() > this.#ends
  }

  /**
   * Everything else gets the event loop, until a turn of it had nothing to do, or for two slices.
   * A change takes several turns from the API server to the kernel.
   */
  async rest(): Promise<void> {
    this.#workedMs = this.workedMs
    // What is left of the present turn may have nothing to do.
    await new Promise(setImmediate)
    let began = performance.now()
    const restEnds = began + 2 * this.#ms
    for (;;) {
      await new Promise(setImmediate)
      this.#began = performance.now()
      if (this.#began - began < idleTurnMs || this.#began > restEnds) break
      began = this.#began
    }
    this.#ends = this.#began + this.#ms
  }
}

/** Work on the thread that answers health checks is long after this time. */
const longWorkMs = 50

/** Everything else gets the event loop, as in a rest of a slice, if work since then was long. */
export async function restAfterLongWork(beganAt: number): Promise<void> {
  if (performance.now() - beganAt > longWorkMs) await new Slice().rest()
}

/** Resolves once the signal is aborted; at once when it already is. */
export function aborted(signal: AbortSignal): Promise<void> {
  if (signal.aborted) return Promise.resolve()
  return new Promise((resolve) => {
    signal.addEventListener('abort', () => resolve(), { once: true })
  })
}

/**
 * Whether this process ends, asked when a program of it has failed: a signal to the whole process
 * group ends its programs, too, and is heard a turn later.
 */
export async function isEnding(signal: AbortSignal | undefined): Promise<boolean> {
  await new Promise(setImmediate)
  return signal?.aborted === true
}

/** Runs all until the signal or until one fails; then all are stopped, and the failure is thrown. */
export async function together(
  signal: AbortSignal,
  parts: readonly ((signal: AbortSignal) => Promise<void>)[],
): Promise<void> {
  const failure = new AbortController()
  const results = await Promise.allSettled(
    parts.map(async (part) => {
      try {
        // Each part has its own signal: Node takes eleven listeners on a shared one for a leak.
        await part(AbortSignal.any([signal, failure.signal]))
      } catch (error) {
        failure.abort()
        throw error
      }
    }),
  )
  for (const result of results) if (result.status === 'rejected') throw result.reason
}

/**
 * Works on what waits, one after the other. A value that waits is replaced by a later one of its key.
 * The work must not reject.
 */
export class Backlog<K, V> {
  readonly #work: (key: K, value: V) => Promise<void>
  readonly #waiting = new Map<K, V>()
  #running: Promise<void> | undefined

  constructor(work: (key: K, value: V) => Promise<void>) {
    this.#work = work
  }

  get(key: K): V | undefined {
    return this.#waiting.get(key)
  }

  put(key: K, value: V): void {
    this.#waiting.set(key, value)
    this.#running ??= this.#run()
  }

  /** Resolves when nothing waits and nothing is under way. */
  async idle(): Promise<void> {
    await this.#running
  }

  async #run(): Promise<void> {
    for (const [key, value] of this.#waiting) {
      this.#waiting.delete(key)
      await this.#work(key, value)
    }
    // In the same turn as the last look at what waits: a put in between would start nothing.
    this.#running = undefined
  }
}

/** Runs work one after the other: each begins when the one before has ended or failed. */
export class Turns {
  #last: Promise<unknown> = Promise.resolve()

  take<T>(work: () => Promise<T>): Promise<T> {
    const result = this.#last.then(work)
    this.#last = result.catch(() => undefined)
    return result
  }

  /** Resolves when nothing is under way. */
  async idle(): Promise<void> {
    await this.#last
  }
}
