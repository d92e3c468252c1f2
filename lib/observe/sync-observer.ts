import type { Log, Meter } from '../modes/mode.js'
import type { ModeName } from '../config/config.js'
import type { IpFamily } from '../state/ip.js'
import type { SyncReport } from '../sync/syncer.js'
import type { DesiredState } from '../state/desired-state.js'
import type { StateUpdate } from '../state/tracker.js'

interface SyncObserverOptions {
  readonly mode: ModeName
  readonly log: Log
  readonly meter: Meter
  /** Milliseconds since 1970, as trigger times are. */
  readonly now: () => number
  /** Milliseconds since this process started. */
  readonly age: () => number
  /** When this process started, in ms since 1970. Older trigger times do not count (E10). */
  readonly startedAt: number
}

/** Where syncs follow each other closely, the log names one a second; metrics count all of them. */
const quietMs = 1000

/** Turns what a sync does into log lines and the metrics of section 15. */
export class SyncObserver {
  readonly #options: SyncObserverOptions
  readonly #syncedOnce = new Set<IpFamily>()
  /** The service ports that failed in the last sync, with the reason that was logged. */
  readonly #failed = new Map<IpFamily, ReadonlyMap<string, string>>()
  /** Why the last sync failed, if it did. */
  readonly #errors = new Map<IpFamily, string | undefined>()
  readonly #states = new Map<IpFamily, DesiredState>()
  /** When a sync was last logged at level info, in ms of `age`. */
  readonly #toldAt = new Map<IpFamily, number>()
  /** Trigger times of changes whose sync has not succeeded yet. */
  readonly #waiting = new Map<IpFamily, number[]>()

  constructor(options: SyncObserverOptions) {
    this.#options = options
  }

  /** An object has changed; so many of its kind wait with changes for the next sync. */
  noticed(kind: 'service' | 'endpoints', waiting: number): void {
    const { meter } = this.#options
    if (kind === 'service') {
      meter.count('sync_proxy_rules_service_changes_total', {})
      meter.gauge('sync_proxy_rules_service_changes_pending', {}, waiting)
    } else {
      meter.count('sync_proxy_rules_endpoint_changes_total', {})
      meter.gauge('sync_proxy_rules_endpoint_changes_pending', {}, waiting)
    }
  }

  started(update: StateUpdate): void {
    const { log, meter, startedAt } = this.#options
    log.debug({}, 'sync begins')
    meter.gauge('sync_proxy_rules_endpoint_changes_pending', {}, 0)
    meter.gauge('sync_proxy_rules_service_changes_pending', {}, 0)
    for (const { policy, family, count } of update.withoutLocalEndpoints) {
      const labels = { traffic_policy: policy, ip_family: family }
      meter.gauge('sync_proxy_rules_no_local_endpoints_total', labels, count)
    }
    for (const state of update.states) {
      meter.gauge('services', { ip_family: state.family }, state.services.size)
      this.#logServices(state)
    }
    for (const [family, times] of update.triggerTimes) {
      const fresh = times.filter((time) => time >= startedAt)
      this.#waiting.set(family, [...(this.#waiting.get(family) ?? []), ...fresh])
    }
  }

  /** One family is done; `changed` counts its service ports in the update. */
  synced(report: SyncReport, changed: number): void {
    const { mode, log, meter, now } = this.#options
    const { family, outcome, full, bytes, objects, failed } = report
    const labels = { ip_family: family }
    const ms = Math.round(report.planMs + report.applyMs)
    this.#observeDuration(report)
    this.#logFailedServices(report)
    if (outcome === 'failed' || failed.length > 0) this.#countFailure(report)
    if (outcome === 'failed') {
      const { error, detail } = report
      const fields = { mode, family, ms, error, ...(detail === undefined ? {} : { detail }) }
      const message = 'sync failed, the rules of the last good sync stay; will retry'
      // The same error again is logged for debugging only; the metrics count it.
      if (this.#errors.get(family) === error) log.debug(fields, message)
      else log.error(fields, message)
      this.#errors.set(family, error)
      return
    }
    this.#errors.delete(family)
    meter.gauge('sync_proxy_rules_last_timestamp_seconds', labels, now() / 1000)
    meter.count('sync_written_bytes_total', labels, bytes)
    this.#observeLatency(family)
    if (!this.#syncedOnce.has(family)) {
      this.#syncedOnce.add(family)
      meter.gauge('first_sync_seconds', labels, this.#options.age() / 1000)
    }
    log.debug({ family, planMs: report.planMs, applyMs: report.applyMs }, 'sync measured')
    const fields = { mode, family, changed, ms, bytes, objects, full }
    if (outcome !== 'applied') log.debug(fields, 'SyncProxyRules complete, nothing to change')
    else log[this.#levelFor(family, full)](fields, 'SyncProxyRules complete')
  }

  /** A family without changes costs nothing; its zeros would lower the quantiles. */
  #observeDuration({ family, outcome, full, planMs, applyMs }: SyncReport): void {
    if (outcome === 'unchanged') return
    const { meter } = this.#options
    const labels = { ip_family: family }
    const seconds = (planMs + applyMs) / 1000
    meter.observe('sync_proxy_rules_duration_seconds', labels, seconds)
    const kind = full ? 'full' : 'partial'
    meter.observe(`sync_${kind}_proxy_rules_duration_seconds`, labels, seconds)
  }

  #levelFor(family: IpFamily, full: boolean): 'info' | 'debug' {
    const age = this.#options.age()
    const toldAt = this.#toldAt.get(family) ?? -Infinity
    if (!full && age - toldAt < quietMs) return 'debug'
    this.#toldAt.set(family, age)
    return 'info'
  }

  /** EV07: logs each service port that is added, changed or removed, with -v 4. */
  #logServices(state: DesiredState): void {
    const { log } = this.#options
    const { family, services } = state
    const before = this.#states.get(family)
    this.#states.set(family, state)
    if (before?.services === services) return
    const { added, changed, removed } = services.since(before?.services)
    const logAll = (message: string, ports: readonly (readonly [string, ...unknown[]])[]) => {
      for (const [service] of ports) log.debug({ service, family }, message)
    }
    logAll('Adding new service port', added)
    logAll('Updating existing service port', changed)
    logAll('Removing service port', removed)
  }

  /** Logs each service port once for each reason, not at every retry. */
  #logFailedServices({ family, outcome, failed }: SyncReport): void {
    // A sync that failed as a whole tells nothing about single service ports.
    if (outcome === 'failed') return
    const told = this.#failed.get(family)
    for (const { key, reason } of failed) {
      if (told?.get(key) === reason) continue
      const fields = { service: key, family, reason }
      this.#options.log.warn(fields, 'service port could not be programmed, will retry')
    }
    this.#failed.set(family, new Map(failed.map(({ key, reason }) => [key, reason])))
  }

  #countFailure({ family, full, outcome }: SyncReport): void {
    const { mode, meter } = this.#options
    const labels = { ip_family: family }
    meter.count('sync_failures_total', labels)
    if (outcome !== 'failed') return
    if (mode === 'nftables' || mode === 'ebpf') {
      meter.count('sync_proxy_rules_nftables_sync_failures_total', labels)
    }
    if (mode !== 'iptables' && mode !== 'ipvs') return
    meter.count('sync_proxy_rules_iptables_restore_failures_total', labels)
    if (mode === 'iptables' && !full) {
      meter.count('sync_proxy_rules_iptables_partial_restore_failures_total', labels)
    }
  }

  /** The time from the change in the cluster to the rule in the kernel (E10). */
  #observeLatency(family: IpFamily): void {
    const { meter, now } = this.#options
    for (const time of this.#waiting.get(family) ?? []) {
      const seconds = Math.max(0, now() - time) / 1000
      meter.observe('network_programming_duration_seconds', { ip_family: family }, seconds)
    }
    this.#waiting.delete(family)
  }
}
