import type { IpFamily } from '../state/ip.js'

/**
 * What the kernel is known to hold of one family. A mode writes only the difference from it.
 * Nothing is known at the start, while a write runs, after a write that failed, and after `forget`.
 */
export class Known<T> {
  #value: T | undefined
  #disturbances = 0
  #write: Promise<unknown> = Promise.resolve()

  get value(): T | undefined {
    return this.#value
  }

  /** What is known once no write runs. */
  async settled(): Promise<T | undefined> {
    for (let seen: unknown; seen !== this.#write;) {
      seen = this.#write
      await this.#write
    }
    return this.#value
  }

  /** The kernel may hold something else now. A write that runs is not trusted either. */
  forget(): void {
    this.#value = undefined
    this.#disturbances++
  }

  /** Runs a write, which gets what is known. If it succeeds, its `now` is known from then on. */
  update<R>(write: (before: T | undefined) => Promise<Written<T, R>>): Promise<R> {
    const result = this.#update(write)
    this.#write = result.catch(() => undefined)
    return result
  }

  async #update<R>(write: (before: T | undefined) => Promise<Written<T, R>>): Promise<R> {
    const before = this.#value
    this.#value = undefined
    const disturbances = this.#disturbances
    const { now, result } = await write(before)
    if (this.#disturbances === disturbances) this.#value = now
    return result
  }
}

interface Written<T, R> {
  /** What the kernel holds now; undefined when a part could not be written. */
  readonly now: T | undefined
  readonly result: R
}

/** One for each family. */
export type KnownByFamily<T> = Readonly<Record<IpFamily, Known<T>>>

export function knownByFamily<T>(): KnownByFamily<T> {
  return { IPv4: new Known(), IPv6: new Known() }
}

export function forgetAll(known: KnownByFamily<unknown>): void {
  known.IPv4.forget()
  known.IPv6.forget()
}
