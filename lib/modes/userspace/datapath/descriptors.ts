import { readFileSync } from 'node:fs'

/**
 * File descriptors the data paths of all workers may have open together. The process keeps a
 * reserve for what it needs to stay alive: the API connection, rules to write, logs. Taking is
 * one atomic operation, so that a busy worker never asks another thread.
 */
export class DescriptorBudget {
  /** To be handed to other threads. */
  readonly shared: SharedArrayBuffer
  readonly #cells: Int32Array

  /** `shared` comes from {@link DescriptorBudget.allocate} and may be given to other threads. */
  constructor(shared: SharedArrayBuffer) {
    this.shared = shared
    this.#cells = new Int32Array(shared)
  }

  /** `waiting`: accepted clients that may wait for an endpoint's socket, out of the reserve. */
  static allocate(limit: number, waiting = 0): SharedArrayBuffer {
    const shared = new SharedArrayBuffer(4 * 3)
    const cells = new Int32Array(shared)
    cells[left] = limit
    cells[seats] = waiting
    return shared
  }

  get left(): number {
    return Atomics.load(this.#cells, left)
  }

  /** A seat for a client that has to wait; false when all are taken. */
  tryWait(): boolean {
    return this.#tryTake(seats, 1)
  }

  stopWaiting(): void {
    Atomics.add(this.#cells, seats, 1)
  }

  /** Somebody found nothing left, and had to wait or go. */
  wasShort(): void {
    Atomics.add(this.#cells, shortages, 1)
  }

  /** How often that was since the last call. */
  takeShortages(): number {
    return Atomics.exchange(this.#cells, shortages, 0)
  }

  /** False takes nothing. */
  tryTake(count: number): boolean {
    return this.#tryTake(left, count)
  }

  release(count: number): void {
    Atomics.add(this.#cells, left, count)
  }

  #tryTake(cell: number, count: number): boolean {
    if (Atomics.sub(this.#cells, cell, count) >= count) return true
    Atomics.add(this.#cells, cell, count)
    return false
  }
}

/** What the shared cells hold. */
const left = 0
const seats = 1
const shortages = 2

const reserve = 128
const unknownLimit = 1024

/** What of the soft limit is left for connections. Node raises it to the hard one at its start. */
export function descriptorLimit(limits = readLimits()): number {
  const soft = /^Max open files\s+(\d+|unlimited)/m.exec(limits)?.[1]
  const limit = soft === 'unlimited' ? 2 ** 30 : Number(soft ?? unknownLimit)
  return Math.max(limit - Math.min(reserve, Math.floor(limit / 3)), 16)
}

/** Of the reserve, and never so many that the process itself would run short. */
export function waitingLimit(limit = descriptorLimit()): number {
  return Math.min(reserve / 2, Math.floor(limit / 16))
}

/** What an operator is told, whatever had to wait for descriptors. */
export const shortageAdvice =
  'no file descriptors left: new connections wait, established ones go on; raise the limit of open files'

function readLimits(): string {
  try {
    return readFileSync('/proc/self/limits', 'utf8')
  } catch {
    return ''
  }
}
