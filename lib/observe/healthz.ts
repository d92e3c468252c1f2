import type { IpFamily } from '../state/ip.js'
import type { NodeObject } from '../state/objects.js'

interface HealthOptions {
  readonly families: readonly IpFamily[]
  /** When an update waits longer than this, the proxy is unhealthy: 2 x syncPeriod (H03). */
  readonly timeoutMs: number
  /** Whether there is a cluster, and so a Node object. */
  readonly expectsNode: boolean
  /** Milliseconds since 1970, to be shown. */
  readonly date: () => number
  /** Milliseconds of a clock that nobody can set, to measure how long an update waits. */
  readonly now: () => number
}

/** The part of the object of this node that counts for health (H04). */
type NodeState = Pick<NodeObject, 'isBeingDeleted' | 'isTaintedForDeletion'>

interface FamilyHealth {
  /** The date of the last successful sync; undefined before the first. */
  readonly updatedAt: number | undefined
  /** The time since which the oldest update waits; undefined when none waits. */
  pendingSince: number | undefined
}

/** The answer of /healthz, /livez and /readyz (H02). */
export interface HealthAnswer {
  readonly code: 200 | 503
  readonly body: object
}

/** Whether this proxy writes updates in time (H01-H06). It has no servers and no timers. */
export class Health {
  readonly #options: HealthOptions
  #timeoutMs: number
  readonly #families = new Map<IpFamily, FamilyHealth>()
  #node: NodeState | undefined

  constructor(options: HealthOptions) {
    this.#options = options
    this.#timeoutMs = options.timeoutMs
    for (const family of options.families) {
      this.#families.set(family, { updatedAt: undefined, pendingSince: undefined })
    }
  }

  /** An update waits to be written. Each family counts from its oldest waiting update. */
  queued(): void {
    const now = this.#options.now()
    for (const state of this.#families.values()) state.pendingSince ??= now
  }

  synced(family: IpFamily): void {
    this.#families.set(family, { updatedAt: this.#options.date(), pendingSince: undefined })
  }

  setTimeoutMs(timeoutMs: number): void {
    this.#timeoutMs = timeoutMs
  }

  setNode(node: NodeState | undefined): void {
    this.#node = node
  }

  /** Whether every family is in time. A family that was never synced counts as healthy (H03). */
  get isHealthy(): boolean {
    return [...this.#families.values()].every((state) => this.#isInTime(state))
  }

  /** Whether every family was synced at least once. */
  get isReady(): boolean {
    return [...this.#families.values()].every(({ updatedAt }) => updatedAt !== undefined)
  }

  /**
   * The answer for load balancers. It also tells whether this node should get new traffic (H04).
   */
  healthz(): HealthAnswer {
    const { expectsNode } = this.#options
    const node = this.#node
    const nodeEligible = node ? !node.isBeingDeleted && !node.isTaintedForDeletion : !expectsNode
    return this.#answer(this.isHealthy && nodeEligible, { nodeEligible })
  }

  /**
   * The answer for livenessProbes. A node that is being deleted is no reason for a restart (H05).
   */
  livez(): HealthAnswer {
    return this.#answer(this.isHealthy, {})
  }

  /** Ready from the first complete sync on. kube-proxy has no such answer. */
  readyz(): HealthAnswer {
    return this.#answer(this.isHealthy && this.isReady, {})
  }

  #isInTime({ updatedAt, pendingSince }: FamilyHealth): boolean {
    if (updatedAt === undefined || pendingSince === undefined) return true
    return this.#options.now() - pendingSince < this.#timeoutMs
  }

  #answer(isGood: boolean, extra: { readonly nodeEligible?: boolean }): HealthAnswer {
    const now = this.#options.date()
    const status: Partial<Record<IpFamily, { lastUpdated: string; healthy: boolean }>> = {}
    let oldest = now
    for (const [family, state] of this.#families) {
      const healthy = this.#isInTime(state)
      if (!healthy) oldest = Math.min(oldest, state.updatedAt ?? 0)
      status[family] = { lastUpdated: timeText(state.updatedAt), healthy }
    }
    // Old load balancers read only lastUpdated. It is the current time while all is healthy (H02).
    const body = {
      lastUpdated: timeText(oldest),
      currentTime: timeText(now),
      healthy: isGood,
      ...extra,
      status,
    }
    return { code: isGood ? 200 : 503, body }
  }
}

/** Go's zero time means never. */
function timeText(ms: number | undefined): string {
  return ms === undefined ? '0001-01-01T00:00:00Z' : new Date(ms).toISOString()
}
