import type { IpFamily } from '../state/ip.js'

export interface HealthOptions {
  readonly families: readonly IpFamily[]
  /** An update that waits longer than this means the proxy is stuck: 2 x syncPeriod (H03). */
  readonly timeoutMs: number
  /** Without a cluster there is no Node whose state could matter. */
  readonly expectsNode: boolean
  /** Milliseconds since 1970. */
  readonly now: () => number
}

/** What matters about this node's object (H04). */
export interface NodeState {
  readonly isBeingDeleted: boolean
  readonly isTaintedForDeletion: boolean
}

interface FamilyHealth {
  /** When the last good sync ended; undefined before the first. */
  readonly updatedAt: number | undefined
  /** Since when an update waits; undefined when none does. */
  readonly pendingSince: number | undefined
}

/** The body of /healthz, /livez and /readyz (H02). */
export interface HealthBody {
  readonly lastUpdated: string
  readonly currentTime: string
  readonly healthy: boolean
  /** Only of /healthz. */
  readonly nodeEligible?: boolean
  readonly status: Readonly<
    Partial<Record<IpFamily, { readonly lastUpdated: string; readonly healthy: boolean }>>
  >
}

export interface HealthAnswer {
  readonly code: 200 | 503
  readonly body: HealthBody
}

/** Whether this proxy keeps up (H01-H06), as a state machine without servers and timers. */
export class Health {
  readonly #options: HealthOptions
  readonly #families = new Map<IpFamily, FamilyHealth>()
  #node: NodeState | undefined

  constructor(options: HealthOptions) {
    this.#options = options
    for (const family of options.families) {
      this.#families.set(family, { updatedAt: undefined, pendingSince: undefined })
    }
  }

  /** Something changed that has to be written; all families count from the oldest such moment. */
  queued(): void {
    const now = this.#options.now()
    for (const [family, state] of this.#families) {
      this.#families.set(family, { ...state, pendingSince: state.pendingSince ?? now })
    }
  }

  /** A sync of this family went well. */
  synced(family: IpFamily): void {
    this.#families.set(family, { updatedAt: this.#options.now(), pendingSince: undefined })
  }

  setNode(node: NodeState | undefined): void {
    this.#node = node
  }

  /** Whether every family keeps up. A family that never synced is not judged (H03). */
  get isHealthy(): boolean {
    return [...this.#families.values()].every((state) => this.#keepsUp(state))
  }

  /** Whether every family was synced at least once. */
  get isReady(): boolean {
    return [...this.#families.values()].every(({ updatedAt }) => updatedAt !== undefined)
  }

  /** For load balancers: also whether new traffic should come to this node at all (H04). */
  healthz(): HealthAnswer {
    const { expectsNode } = this.#options
    const node = this.#node
    const nodeEligible = node ? !node.isBeingDeleted && !node.isTaintedForDeletion : !expectsNode
    return this.#answer(this.isHealthy && nodeEligible, { nodeEligible })
  }

  /** For livenessProbes: a node that is about to go is no reason to restart (H05). */
  livez(): HealthAnswer {
    return this.#answer(this.isHealthy, {})
  }

  /** Not before the first complete sync; kube-proxy has no such answer. */
  readyz(): HealthAnswer {
    return this.#answer(this.isHealthy && this.isReady, {})
  }

  #keepsUp({ updatedAt, pendingSince }: FamilyHealth): boolean {
    if (updatedAt === undefined || pendingSince === undefined) return true
    return this.#options.now() - pendingSince < this.#options.timeoutMs
  }

  #answer(isGood: boolean, extra: { readonly nodeEligible?: boolean }): HealthAnswer {
    const now = this.#options.now()
    const status: Partial<Record<IpFamily, { lastUpdated: string; healthy: boolean }>> = {}
    let oldest = now
    for (const [family, state] of this.#families) {
      const healthy = this.#keepsUp(state)
      if (!healthy) oldest = Math.min(oldest, state.updatedAt ?? 0)
      status[family] = { lastUpdated: timeText(state.updatedAt), healthy }
    }
    // Old load balancers read lastUpdated only: it is the current time while all is well (H02).
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

/** Go's zero time stands for never. */
function timeText(ms: number | undefined): string {
  return ms === undefined ? '0001-01-01T00:00:00Z' : new Date(ms).toISOString()
}
