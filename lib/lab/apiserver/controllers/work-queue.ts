/**
 * Keys to look at, each once however often it was added, after the change that asked for it has
 * reached everybody: a controller never writes from inside a store's notification.
 */
export class WorkQueue {
  readonly #work: (key: string) => void
  readonly #keys = new Set<string>()
  #scheduled: NodeJS.Immediate | undefined

  constructor(work: (key: string) => void) {
    this.#work = work
  }

  add(key: string): void {
    this.#keys.add(key)
    this.#scheduled ??= setImmediate(() => this.#drain())
  }

  stop(): void {
    clearImmediate(this.#scheduled)
    this.#keys.clear()
  }

  #drain(): void {
    this.#scheduled = undefined
    const keys = [...this.#keys]
    this.#keys.clear()
    for (const key of keys) this.#work(key)
  }
}
