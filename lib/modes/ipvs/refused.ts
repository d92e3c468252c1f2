import type { ServiceFailure } from '../mode.js'

/** A change that the kernel refused, with the id of the resource that it concerns. */
export interface Refusal extends ServiceFailure {
  readonly id: string
  /** What should be added is missing, and nothing else is wrong. */
  readonly isAddition: boolean
}

/**
 * What the kernel refused to add for one family. It is tried again when it changes, or all of it
 * after some time: who makes a Service that the kernel refuses must not make every sync a full one.
 */
export class Refused {
  /** The first refusal by id; others follow from it. */
  readonly #failures = new Map<string, ServiceFailure>()
  #triedAt = -Infinity

  get failures(): readonly ServiceFailure[] {
    return [...this.#failures.values()]
  }

  has(id: string): boolean {
    return this.#failures.has(id)
  }

  /** Whether it is time to try all of it again. */
  isDue(now: number, retryMs: number): boolean {
    return this.#failures.size > 0 && now - this.#triedAt >= retryMs
  }

  /** Everything is tried now. */
  clear(now: number): void {
    this.#failures.clear()
    this.#triedAt = now
  }

  /** These are tried now, or gone. */
  forget(ids: Iterable<string>): void {
    for (const id of ids) this.#failures.delete(id)
  }

  add({ id, key, reason }: Refusal): void {
    if (!this.#failures.has(id)) this.#failures.set(id, { key, reason })
  }
}
