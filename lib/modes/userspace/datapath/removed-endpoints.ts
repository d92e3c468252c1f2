import type { EndpointChanges, Target } from './data-path.js'

/** The part of a connection that is needed here. */
interface EndpointConnection {
  /** Its endpoint, once it has one. */
  readonly target: Target | undefined
  reset(): void
}

type Changes = Pick<EndpointChanges, 'removed' | 'servingKeys' | 'resetAfterMs'>

/**
 * Resets connections some time after their endpoint left, where a Service asks for it. An endpoint
 * has left when it is neither used nor serving, so a pod that terminates may finish first.
 */
export class RemovedEndpoints {
  readonly #connections: ReadonlySet<EndpointConnection>
  readonly #isUsed: (endpoint: string) => boolean
  readonly #timers = new Map<string, NodeJS.Timeout>()
  #serving: ReadonlySet<string>

  constructor(
    connections: ReadonlySet<EndpointConnection>,
    isUsed: (endpoint: string) => boolean,
    serving: readonly string[],
  ) {
    this.#connections = connections
    this.#isUsed = isUsed
    this.#serving = new Set(serving)
  }

  /** Call it after the balancer has the changes. */
  update({ removed, servingKeys, resetAfterMs }: Changes): void {
    const before = this.#serving
    this.#serving = new Set(servingKeys)
    for (const [endpoint, timer] of this.#timers) {
      if (resetAfterMs !== undefined && !this.#isHere(endpoint)) continue
      clearTimeout(timer)
      this.#timers.delete(endpoint)
    }
    if (resetAfterMs === undefined) return
    for (const endpoint of new Set([...removed, ...before])) {
      if (this.#isHere(endpoint) || this.#timers.has(endpoint)) continue
      const timer = setTimeout(() => this.#end(endpoint), resetAfterMs).unref()
      this.#timers.set(endpoint, timer)
    }
  }

  #isHere(endpoint: string): boolean {
    return this.#isUsed(endpoint) || this.#serving.has(endpoint)
  }

  #end(endpoint: string): void {
    this.#timers.delete(endpoint)
    for (const connection of this.#connections) {
      if (connection.target?.key === endpoint) connection.reset()
    }
  }
}
