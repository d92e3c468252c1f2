import { readFileSync } from 'node:fs'

/**
 * File descriptors the data paths of all workers may have open together. The process keeps a
 * reserve for what it needs to stay alive: the API connection, rules to write, logs. Taking is
 * one atomic operation, so that a busy worker never asks another thread.
 */
export class DescriptorBudget {
  readonly #cells: Int32Array

  /** `shared` comes from {@link DescriptorBudget.allocate} and may be given to other threads. */
  constructor(shared: SharedArrayBuffer) {
    this.#cells = new Int32Array(shared)
  }

  static allocate(limit: number): SharedArrayBuffer {
    const shared = new SharedArrayBuffer(8)
    new Int32Array(shared)[0] = limit
    return shared
  }

  get left(): number {
    return Atomics.load(this.#cells, 0)
  }

  /** False takes nothing. */
  tryTake(count: number): boolean {
    if (Atomics.sub(this.#cells, 0, count) >= count) return true
    Atomics.add(this.#cells, 0, count)
    return false
  }

  release(count: number): void {
    Atomics.add(this.#cells, 0, count)
  }
}

const reserve = 128
const unknownLimit = 1024

/** What of the soft limit is left for connections. Node raises it to the hard one at its start. */
export function descriptorLimit(limits = readLimits()): number {
  const soft = /^Max open files\s+(\d+|unlimited)/m.exec(limits)?.[1]
  const limit = soft === 'unlimited' ? 2 ** 30 : Number(soft ?? unknownLimit)
  return Math.max(limit - Math.min(reserve, Math.floor(limit / 4)), 16)
}

function readLimits(): string {
  try {
    return readFileSync('/proc/self/limits', 'utf8')
  } catch {
    return ''
  }
}
