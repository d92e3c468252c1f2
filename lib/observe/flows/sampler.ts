/** Lets so many lines a second through, and counts the others. */
export class Sampler {
  readonly #perSecond: number
  readonly #now: () => number
  readonly #isLeftOut: () => void
  #second = -1
  #passed = 0
  #leftOut = 0

  /** `now` returns milliseconds. `isLeftOut` is called for each line that may not pass. */
  constructor(perSecond: number, now: () => number, isLeftOut: () => void = () => undefined) {
    this.#perSecond = perSecond
    this.#now = now
    this.#isLeftOut = isLeftOut
  }

  /** Whether the next line may pass. */
  admits(): boolean {
    const second = Math.floor(this.#now() / 1000)
    if (second !== this.#second) this.#passed = 0
    this.#second = second
    if (this.#passed < this.#perSecond) {
      this.#passed++
      return true
    }
    this.#leftOut++
    this.#isLeftOut()
    return false
  }

  /** How many were left out since the last call. */
  takeLeftOut(): number {
    const leftOut = this.#leftOut
    this.#leftOut = 0
    return leftOut
  }
}
