/**
 * The time between two turns, at which checks begin and are read: a wake-up costs more than a
 * check.
 */
export const turnMs = 50

interface TurnsDeps {
  /** Milliseconds of a clock that nobody can set. */
  readonly now: () => number
  /** Calls back after so many milliseconds; returns a function that cancels this. */
  readonly timer: (ms: number, then: () => void) => () => void
  readonly turnMs: number
}

/**
 * Calls back at turns of the clock; all calls that are due at one turn come together. One timer
 * serves them all: thousands of timers, one for each check, would live just long enough to be
 * expensive to collect.
 */
export class Turns {
  readonly #deps: TurnsDeps
  /** By number of the turn. */
  readonly #due = new Map<number, Set<() => void>>()
  /** The turn that the timer waits for. */
  #next = Infinity
  #stop: () => void = () => undefined
  #isCalling = false

  constructor(deps: TurnsDeps) {
    this.#deps = deps
  }

  /**
   * Calls back at the last turn before so many milliseconds have passed, or else at the next turn.
   * Returns that turn.
   */
  wait(ms: number, then: () => void): number {
    const { now, turnMs } = this.#deps
    const at = now()
    const turn = Math.max(Math.floor((at + ms) / turnMs), Math.floor(at / turnMs) + 1)
    const due = this.#due.get(turn)
    if (due) due.add(then)
    else this.#due.set(turn, new Set([then]))
    if (turn < this.#next && !this.#isCalling) this.#arm(turn)
    return turn
  }

  /** Cancels a call of {@link Turns.wait}. */
  cancel(turn: number, then: () => void): void {
    const due = this.#due.get(turn)
    if (due?.delete(then) === true && due.size === 0) this.#due.delete(turn)
  }

  #call(): void {
    const { now, turnMs } = this.#deps
    // Timers fire up to a millisecond early.
    const reached = Math.max(this.#next, Math.floor(now() / turnMs))
    this.#isCalling = true
    for (let turn = this.#next; turn <= reached; turn++) {
      const due = this.#due.get(turn)
      this.#due.delete(turn)
      for (const then of due ?? []) then()
    }
    this.#isCalling = false
    this.#next = Infinity
    if (this.#due.size === 0) return
    let turn = reached
    while (!this.#due.has(turn)) turn++
    this.#arm(turn)
  }

  #arm(turn: number): void {
    const { now, timer, turnMs } = this.#deps
    this.#stop()
    this.#next = turn
    this.#stop = timer(Math.max(0, turn * turnMs - now()), () => this.#call())
  }
}
