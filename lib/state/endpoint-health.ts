import type { Endpoint } from './desired-state.js'
import type { ServicePortName } from './names.js'
import { keyOf } from './names.js'

/** What active checks found out about the endpoints of one service port. */
export interface HealthView {
  /** Why each failing endpoint fails, by `Endpoint.key`. */
  readonly failing: ReadonlyMap<string, string>
  readonly keepsLast: boolean
}

/**
 * The candidates without those that fail. If all fail and `keepsLast` is set, all stay: a check
 * that is wrong, or a node that is cut off, must not take a whole Service away.
 */
export function withoutFailing<T extends { readonly endpoint: Pick<Endpoint, 'key'> }>(
  candidates: readonly T[],
  health: HealthView | undefined,
): readonly T[] {
  if (!health || health.failing.size === 0) return candidates
  const healthy = candidates.filter(({ endpoint }) => !health.failing.has(endpoint.key))
  return healthy.length === 0 && health.keepsLast ? candidates : healthy
}

/** One endpoint that fails, as one process reports it to another. */
export interface EndpointFailure {
  readonly port: ServicePortName
  /** `Endpoint.key` */
  readonly endpoint: string
  readonly reason: string
}

const noneFails: ReadonlyMap<string, string> = new Map()

/** Which endpoints fail now, by service port. */
export class FailingEndpoints {
  readonly #byPort = new Map<string, Map<string, string>>()

  /** `reason` is undefined when the endpoint works. Returns whether anything has changed. */
  set(port: ServicePortName, endpoint: string, reason: string | undefined): boolean {
    const key = keyOf(port)
    const failing = this.#byPort.get(key) ?? new Map<string, string>()
    if (failing.get(endpoint) === reason) return false
    if (reason === undefined) failing.delete(endpoint)
    else failing.set(endpoint, reason)
    if (failing.size === 0) this.#byPort.delete(key)
    else this.#byPort.set(key, failing)
    return true
  }

  of(port: ServicePortName): ReadonlyMap<string, string> {
    return this.#byPort.get(keyOf(port)) ?? noneFails
  }
}
