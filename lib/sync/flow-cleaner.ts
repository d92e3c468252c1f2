import { Backlog } from '../async.js'
import { messageOf } from '../errors.js'
import { mayHaveStaleFlows, staleFlowTest, UdpFrontends } from './stale-flows.js'
import type { DesiredState } from '../state/desired-state.js'
import type { Conntrack } from '../kernel/conntrack.js'
import type { IpFamily } from '../state/ip.js'
import type { Log, Meter } from '../modes/mode.js'

interface FlowCleanerOptions {
  /** Called only when the table is needed, so a node without UDP Services never opens it. */
  readonly table: () => Pick<Conntrack, 'delete'>
  readonly log: Log
  readonly meter: Meter
  /** Milliseconds, for durations. */
  readonly now: () => number
  /** Time after which a deletion that failed is tried again. */
  readonly retryMs?: number
}

const defaultRetryMs = 10_000
/** Then a newer state is looked at. */
const budgetMs = 5_000

/**
 * Deletes UDP flows whose endpoint is gone. It works beside the syncs, because a large table takes
 * long and rules must not wait for it. Only the newest state of a family counts.
 */
export class FlowCleaner {
  readonly #options: FlowCleanerOptions
  /** By family: the last state whose rules are in the kernel and whose stale flows are deleted. */
  readonly #cleaned = new Map<IpFamily, DesiredState>()
  readonly #waiting = new Backlog<IpFamily, DesiredState>((_family, state) => this.#clean(state))
  readonly #frontends = new Map<IpFamily, UdpFrontends>()
  /** By family: the state whose rules are in the kernel. */
  readonly #applied = new Map<IpFamily, DesiredState>()
  /** By family: why the last deletion failed. */
  readonly #failures = new Map<IpFamily, string>()
  #retry: NodeJS.Timeout | undefined

  constructor(options: FlowCleanerOptions) {
    this.#options = options
  }

  /**
   * The rules of this state are in the kernel now (IT45: flows are deleted after that). Until those
   * of the service ports in `late` were accepted, clients may have gone to their old endpoints.
   */
  applied(state: DesiredState, late: readonly string[] = []): void {
    this.#applied.set(state.family, state)
    this.#forget(state.family, late)
    const before = this.#waiting.get(state.family) ?? this.#cleaned.get(state.family)
    if (!mayHaveStaleFlows(state, before) && !this.#waiting.get(state.family)) {
      this.#cleaned.set(state.family, state)
      return
    }
    this.#waiting.put(state.family, state)
  }

  #forget(family: IpFamily, keys: readonly string[]): void {
    const cleaned = this.#cleaned.get(family)
    if (!cleaned || keys.length === 0) return
    const services = cleaned.services.update(keys.map((key) => [key, undefined]))
    this.#cleaned.set(family, { ...cleaned, services })
  }

  /** Resolves once no deletion is running. */
  idle(): Promise<void> {
    return this.#waiting.idle()
  }

  async #clean(state: DesiredState): Promise<void> {
    const { log, meter, now, table } = this.#options
    const { family } = state
    const labels = { ip_family: family }
    const started = now()
    try {
      const frontends = this.#frontends.get(family) ?? new UdpFrontends()
      this.#frontends.set(family, frontends)
      const isStale = staleFlowTest(state, this.#cleaned.get(family), frontends)
      const { deleted, left } = await table().delete(family, { protocol: 'UDP', isStale, budgetMs })
      if (left === 0) this.#cleaned.set(family, state)
      else if (!this.#waiting.get(family)) this.#waiting.put(family, state)
      meter.count('conntrack_reconciler_deleted_entries_total', labels, deleted)
      if (deleted > 0) log.info({ family, deleted, left }, 'deleted stale UDP flows')
      this.#failures.delete(family)
    } catch (error) {
      this.#failed(family, messageOf(error))
    }
    meter.observe('conntrack_reconciler_sync_duration_seconds', labels, (now() - started) / 1000)
  }

  /** Tries again later. Until then, a client that keeps sending may lose every packet. */
  #failed(family: IpFamily, error: string): void {
    const { log, retryMs = defaultRetryMs } = this.#options
    const level = this.#failures.get(family) === error ? 'debug' : 'warn'
    log[level]({ family, error }, 'stale UDP flows could not be deleted, will retry')
    this.#failures.set(family, error)
    this.#retry ??= setTimeout(() => {
      this.#retry = undefined
      // Rules of newer states may be in the kernel by then.
      for (const state of this.#applied.values()) this.applied(state)
    }, retryMs).unref()
  }
}
