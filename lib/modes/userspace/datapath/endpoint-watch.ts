import { afterReading } from '../../../async.js'
import type { Balancer } from './balancer.js'
import type { Target } from './data-path.js'
import type { EndpointTraffic } from './traffic.js'

/** An endpoint that resets a connection within this time has not served it. */
const atOnceMs = 1_000

/**
 * Watches what an endpoint does after it has accepted a connection. One that resets at once, or
 * takes too long for its first byte, counts as if it could not be reached. The connection itself
 * goes on: a late answer is better than none.
 */
export class EndpointWatch {
  readonly #options: WatchOptions
  readonly #connectedAt: number
  #cancelTimer: (() => void) | undefined
  #isAsked = false
  #isOver = false

  constructor(options: WatchOptions) {
    this.#options = options
    this.#connectedAt = options.now()
    const { balancer, target, firstByteMs } = options
    if (firstByteMs !== undefined || !balancer.mustProve(target)) return
    // Some endpoints send nothing first. They prove themselves when they keep the connection open.
    this.#cancelTimer = afterReading(atOnceMs, () => this.#prove())
  }

  /** The client's first bytes were sent to the endpoint. */
  asked(): void {
    const { firstByteMs } = this.#options
    if (this.#isAsked || this.#isOver || firstByteMs === undefined) return
    this.#isAsked = true
    this.#cancelTimer = afterReading(firstByteMs, () => this.#late())
  }

  /** The endpoint's first bytes have come. */
  answered(): void {
    if (!this.#isOver) this.#prove()
  }

  /** The connection has ended. `reset by the endpoint`: while the client could still send. */
  ended(how: 'reset by the endpoint' | 'in order' | 'otherwise'): void {
    if (this.#isOver) return
    const { balancer, traffic, target, now, firstByteMs } = this.#options
    if (how === 'reset by the endpoint' && now() - this.#connectedAt < atOnceMs) {
      traffic.resets++
      balancer.acceptedInVain(target)
    } else if (how === 'in order' && firstByteMs === undefined) this.#prove()
    this.#stop()
  }

  #late(): void {
    const { balancer, traffic, target } = this.#options
    traffic.lateAnswers++
    balancer.acceptedInVain(target)
    this.#stop()
  }

  #prove(): void {
    const { balancer, target } = this.#options
    if (balancer.mustProve(target)) balancer.proved(target)
    this.#stop()
  }

  #stop(): void {
    this.#isOver = true
    this.#cancelTimer?.()
  }
}

interface WatchOptions {
  readonly balancer: Balancer
  readonly traffic: EndpointTraffic
  readonly target: Target
  readonly now: () => number
  /** See EndpointChoice. */
  readonly firstByteMs: number | undefined
}
