import { afterReading } from '../../../async.js'
import type { Target } from './data-path.js'
import type { Listener } from './listener.js'

/** An endpoint that resets a connection within this time has not served it. */
const atOnceMs = 1_000

/**
 * Watches what an endpoint does after it has accepted a connection. One that resets at once, or
 * takes too long for its first byte, counts as if it could not be reached. The connection itself
 * goes on: a late answer is better than none.
 */
export class EndpointWatch {
  readonly #listener: Pick<Listener, 'balancer' | 'traffic'>
  readonly #target: Target
  readonly #now: () => number
  readonly #connectedAt: number
  readonly #firstByteMs: number | undefined
  #cancelTimer: (() => void) | undefined
  #isAsked = false
  #isOver = false

  constructor(
    listener: Pick<Listener, 'balancer' | 'traffic' | 'choice'>,
    target: Target,
    now: () => number,
  ) {
    this.#listener = listener
    this.#target = target
    this.#now = now
    this.#connectedAt = now()
    this.#firstByteMs = listener.choice.firstByteMs
    if (this.#firstByteMs !== undefined || !listener.balancer.mustProve(target)) return
    // Some endpoints send nothing first. They prove themselves when they keep the connection open.
    this.#cancelTimer = afterReading(atOnceMs, () => this.#prove())
  }

  /** The client's first bytes were sent to the endpoint. */
  asked(): void {
    if (this.#isAsked || this.#isOver || this.#firstByteMs === undefined) return
    this.#isAsked = true
    this.#cancelTimer = afterReading(this.#firstByteMs, () => this.#late())
  }

  /** The endpoint's first bytes have come. */
  answered(): void {
    if (!this.#isOver) this.#prove()
  }

  /** The connection has ended. `reset by the endpoint`: while the client could still send. */
  ended(how: 'reset by the endpoint' | 'in order' | 'otherwise'): void {
    if (this.#isOver) return
    const { balancer, traffic } = this.#listener
    if (how === 'reset by the endpoint' && this.#now() - this.#connectedAt < atOnceMs) {
      traffic.of(this.#target.key).resets++
      balancer.acceptedInVain(this.#target)
    } else if (how === 'in order' && this.#firstByteMs === undefined) this.#prove()
    this.#stop()
  }

  #late(): void {
    const { balancer, traffic } = this.#listener
    traffic.of(this.#target.key).lateAnswers++
    balancer.acceptedInVain(this.#target)
    this.#stop()
  }

  #prove(): void {
    const { balancer } = this.#listener
    if (balancer.mustProve(this.#target)) balancer.proved(this.#target)
    this.#stop()
  }

  #stop(): void {
    this.#isOver = true
    this.#cancelTimer?.()
  }
}
