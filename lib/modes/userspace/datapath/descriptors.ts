import { openFilesLimit } from '../../../kernel/this-process.js'

/**
 * File descriptors that the data paths of all workers may have open together. The process keeps a
 * reserve for everything else it does: the API connection, writing rules, logs. Taking is one
 * atomic operation, so that a busy worker never asks another thread.
 */
export class DescriptorBudget {
  readonly shared: SharedArrayBuffer
  readonly #cells: Int32Array
  /** What was taken through this object, in the cells of the same index. */
  readonly #held: Int32Array

  /**
   * `shared` comes from {@link DescriptorBudget.allocate} and may be given to other threads. `held`
   * is for one thread, see {@link DescriptorBudget.takeBack}; it comes from `allocate(0)`.
   */
  constructor(shared: SharedArrayBuffer, held = DescriptorBudget.allocate(0)) {
    this.shared = shared
    this.#cells = new Int32Array(shared)
    this.#held = new Int32Array(held)
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
    this.#giveBack(waitingPlaces, 1)
  }

  /**
   * Takes a descriptor for a socket that listens or holds a port, even when none is left: then new
   * connections wait, so that a new Service does not. Listeners get three quarters of all
   * descriptors at most; false when they have these.
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

  /** Counts a client that found no descriptor left, and had to wait or was refused. */
  wasShort(): void {
    Atomics.add(this.#cells, shortages, 1)
  }

  /** How many such clients there were since the last call. */
  takeShortages(): number {
    return Atomics.exchange(this.#cells, shortages, 0)
  }

  /**
   * Takes `count` descriptors for a listener whose clients hold `held`. False when too few are
   * left, or when `held` is far more than is left for the clients of all other listeners.
   */
  tryTakeFor(held: number, count: number): boolean {
    return held <= mostTimesLeft * this.left && this.tryTake(count)
  }

  /** Takes `count` descriptors. Takes none and answers false when fewer are left. */
  tryTake(count: number): boolean {
    return this.#tryTake(left, count)
  }

  release(count: number): void {
    this.#giveBack(left, count)
  }

  /** Gives back what a thread that has ended still held for its connections and clients. */
  takeBack(held: SharedArrayBuffer): void {
    const cells = new Int32Array(held)
    for (const cell of [left, waitingPlaces]) Atomics.add(this.#cells, cell, cells[cell] ?? 0)
  }

  #tryTake(cell: number, count: number): boolean {
    if (Atomics.sub(this.#cells, cell, count) >= count) {
      Atomics.add(this.#held, cell, count)
      return true
    }
    Atomics.add(this.#cells, cell, count)
    return false
  }

  #giveBack(cell: number, count: number): void {
    Atomics.sub(this.#held, cell, count)
    Atomics.add(this.#cells, cell, count)
  }
}

/** The indices of the shared cells. */
const left = 0
const waitingPlaces = 1
const shortages = 2
const listeningPlaces = 3

/**
 * One listener alone gets fifteen of sixteen descriptors, two get fifteen of thirty-one each, and
 * so on. A client of another listener always finds some, however many clients these have.
 */
export const mostTimesLeft = 15

const reserve = 128

/** How many descriptors the data paths may have: the limit of the process without the reserve. */
export function descriptorLimit(limit = openFilesLimit()): number {
  return Math.max(limit - Math.min(reserve, Math.floor(limit / 3)), 16)
}

/** How many clients may wait. They use the reserve, but leave the process most of it. */
export function waitingLimit(limit = descriptorLimit()): number {
  return Math.min(reserve / 2, Math.floor(limit / 16))
}

/** One for the client's socket and one for the endpoint's. */
export const descriptorsPerConnection = 2

/** Errors that mean that this machine lacks something. Another endpoint would not help. */
export const localShortages: ReadonlySet<string> = new Set([
  ...['EMFILE', 'ENFILE', 'ENOBUFS', 'ENOMEM'],
])

/** The error when connections to an endpoint have all ports of this node. Others may have some. */
export const outOfPorts = 'EADDRNOTAVAIL'

/** By try: the pause after it where no port was left. The second try takes another endpoint at once. */
export const portPausesMs: readonly number[] = [0, 500, 1000]

export const portAdvice = (service: string): string =>
  `no port of this node is left for connections to an endpoint of ${service}; a connection that its client ends first holds one for a minute; set net.ipv4.tcp_tw_reuse=1, or widen net.ipv4.ip_local_port_range`

/** The pause between a shortage and the next try. */
export const shortagePauseMs = 50

/** Why a listener or a node port cannot be opened, and what to do. */
export const listenAdvice =
  'the listeners of other Services have all file descriptors that are not kept for connections; raise the limit of open files (LimitNOFILE= of the unit, ulimit -n); each service port needs one, each node port one more'

/** The warning when connections have to wait for descriptors. */
export const shortageAdvice =
  'too few file descriptors are left: new connections wait, established ones go on; raise the limit of open files'
