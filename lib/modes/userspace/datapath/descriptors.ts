import { openFilesLimit } from '../../../kernel/open-files.js'

/**
 * File descriptors that the data paths of all workers may have open together. The process keeps a
 * reserve for everything else it does: the API connection, writing rules, logs. Taking is one
 * atomic operation, so that a busy worker never asks another thread.
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

  /** `waiting`: how many accepted clients may wait, with descriptors out of the reserve. */
  static allocate(limit: number, waiting = 0): SharedArrayBuffer {
    const shared = new SharedArrayBuffer(4 * 4)
    const cells = new Int32Array(shared)
    cells[left] = limit
    cells[waitingPlaces] = waiting
    cells[listeningPlaces] = Math.floor((limit * 3) / 4)
    return shared
  }

  get left(): number {
    return Atomics.load(this.#cells, left)
  }

  /** Takes a place for a client that has to wait; false when none is left. */
  tryWait(): boolean {
    return this.#tryTake(waitingPlaces, 1)
  }

  stopWaiting(): void {
    Atomics.add(this.#cells, waitingPlaces, 1)
  }

  /**
   * Takes one for a socket that listens or holds a port, also while connections have them all:
   * a new Service must not wait for old connections, so these wait instead. False where listeners
   * would leave connections nothing at all.
   */
  tryListen(): boolean {
    if (!this.#tryTake(listeningPlaces, 1)) return false
    Atomics.sub(this.#cells, left, 1)
    return true
  }

  stopListening(): void {
    Atomics.add(this.#cells, listeningPlaces, 1)
    Atomics.add(this.#cells, left, 1)
  }

  /** No descriptor was left for a client, who had to wait or was refused. */
  wasShort(): void {
    Atomics.add(this.#cells, shortages, 1)
  }

  /** How often that happened since the last call. */
  takeShortages(): number {
    return Atomics.exchange(this.#cells, shortages, 0)
  }

  /**
   * Takes so many for a listener whose clients hold `held`, unless that is far more than is left
   * for the clients of all others.
   */
  tryTakeFor(held: number, count: number): boolean {
    return held <= mostTimesLeft * this.left && this.tryTake(count)
  }

  /** Takes so many, or nothing and answers false. */
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

/** The indices of the shared cells. */
const left = 0
const waitingPlaces = 1
const shortages = 2
const listeningPlaces = 3

/**
 * One listener alone gets fifteen of sixteen descriptors, two get fifteen of thirty-one each, and
 * so on: whoever comes next always finds some, however many clients the others have.
 */
const mostTimesLeft = 15

const reserve = 128

/** The limit without the reserve. */
export function descriptorLimit(limit = openFilesLimit()): number {
  return Math.max(limit - Math.min(reserve, Math.floor(limit / 3)), 16)
}

/** How many clients may wait. They use the reserve, but leave the process most of it. */
export function waitingLimit(limit = descriptorLimit()): number {
  return Math.min(reserve / 2, Math.floor(limit / 16))
}

/** The client's socket and the endpoint's. */
export const descriptorsPerConnection = 2

/** Names of errors because this process is short of something; another endpoint would not help. */
export const localShortages: ReadonlySet<string> = new Set([
  ...['EMFILE', 'ENFILE', 'ENOBUFS', 'ENOMEM'],
])

/** After a shortage this passes before the next try. */
export const shortagePauseMs = 50

/** Why a listener or a node port cannot be had, and what to do. */
export const listenAdvice =
  'the listeners of other Services have all file descriptors that are not kept for connections; raise the limit of open files (LimitNOFILE= of the unit, ulimit -n), which takes one for a service port and one more for a node port'

/** The warning when connections have to wait for descriptors. */
export const shortageAdvice =
  'too few file descriptors are left: new connections wait, established ones go on; raise the limit of open files'
