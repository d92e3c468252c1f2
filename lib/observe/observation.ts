import { pause } from '../async.js'
import type { Identity, NodeObject } from '../state/objects.js'
import type { TriedRequest } from '../sources/api-client.js'
import type { ObjectKind } from '../sources/source.js'
import type { SyncReport } from '../sync/syncer.js'
import type { ServiceWarning } from '../state/service-warnings.js'
import type { StateUpdate } from '../state/tracker.js'
import type { ListenerDescriptors, ServiceFailure } from '../modes/mode.js'
import { featureGates, isEnabled } from '../config/feature-gates.js'
import { unsetModeWarnings } from '../config/start-check.js'
import { EndpointHealth } from './endpoint-health.js'
import { ClientConnections } from './client-connections.js'
import { Health } from './healthz.js'
import { ModeStatus } from './mode-status.js'
import { SystemdNotifier, type ServiceManager } from './systemd.js'
import { runServers, type ServersOptions } from './servers.js'
import { ServiceHealth } from './service-health.js'

interface ObservationOptions extends Omit<
  ServersOptions,
  'health' | 'clients' | 'status' | 'endpoints'
> {
  /** Retry interval of the mode. An update may wait twice as long (H03). */
  readonly syncPeriodMs: number
  /** Why the requested mode does not run; empty when it does. */
  readonly fallback?: string
  /** Whether there is a cluster, and so a Node object (H04). */
  readonly expectsNode: boolean
  /** How many connections all its servers hold together. */
  readonly connectionsMax?: number
  /** How many health-check node ports it opens, counted by address. */
  readonly healthPortsMax?: number
  /** systemd, if it has started this process and wants to be notified. */
  readonly serviceManager?: ServiceManager | undefined
}

const retryMs = 5000

/** What the log says where an Event has its reason. */
const logTexts: Readonly<Record<ServiceWarning['event'], string>> = {
  AddressInUse: 'an address of a Service is not served',
  EndpointLeadsBack: 'an endpoint of a Service is not used',
  BalancedOtherwise: 'endpoints are chosen in another way than a Service asks for',
  NotInThisMode: 'an annotation of a Service cannot take effect here',
}

/** The health answers, the metrics pages and Events. The daemon tells it what happens. */
export class Observation {
  readonly #options: ObservationOptions
  readonly #health: Health
  readonly #status: ModeStatus
  readonly #clients: ClientConnections
  readonly #services: ServiceHealth
  /** Gets the results of endpoint checks. */
  readonly endpoints: EndpointHealth
  readonly #systemd: SystemdNotifier | undefined
  /** The notes of warnings that have been recorded as Events, by object and reason. */
  readonly #recorded = new Map<string, Set<string>>()
  #recordedCount = 0

  constructor(options: ObservationOptions) {
    const { families, syncPeriodMs, expectsNode, mode, metrics, fallback = '' } = options
    this.#options = options
    this.#status = new ModeStatus({ families, mode, fallback, meter: metrics, now: Date.now })
    this.#clients = new ClientConnections(options.connectionsMax)
    const now = () => performance.now()
    this.endpoints = new EndpointHealth({ ...options, meter: metrics, now })
    describeBuild(options)
    this.#health = new Health({
      families,
      timeoutMs: timeoutOf(syncPeriodMs),
      expectsNode,
      date: Date.now,
      now,
    })
    const { serviceManager, log } = options
    if (serviceManager) {
      const isHealthy = () => this.#health.isHealthy
      this.#systemd = new SystemdNotifier({ manager: serviceManager, isHealthy, log })
    }
    this.#services = new ServiceHealth({
      clients: this.#clients,
      portsMax: options.healthPortsMax ?? Infinity,
      isHealthy: () => this.#health.isHealthy,
      retryMs,
      sleep: pause,
      failed: ({ namespace, name, port }, message) => {
        const note = `the health-check node port ${port} cannot be opened: ${message}`
        options.log.warn(
          { namespace, service: name, port, error: message },
          'health-check node port cannot be opened, will retry',
        )
        this.#warnAbout('Service', { namespace, name }, 'FailedToStartServiceHealthcheck', note)
      },
      recovered: ({ namespace, name, port }) =>
        options.log.info({ namespace, service: name, port }, 'health-check node port is open now'),
    })
  }

  /** Health-check node ports take these from now on. Called before `run`. */
  share(descriptors: ListenerDescriptors): void {
    this.#services.share(descriptors)
  }

  /** A sync was asked for. */
  queued(): void {
    const { families, metrics } = this.#options
    this.#health.queued()
    for (const family of families) {
      const labels = { ip_family: family }
      metrics.gauge('sync_proxy_rules_last_queued_timestamp_seconds', labels, Date.now() / 1000)
    }
  }

  setSyncPeriod(ms: number): void {
    this.#health.setTimeoutMs(timeoutOf(ms))
  }

  /** The mode found that somebody else changed what it had written. */
  changedByOthers(reason: string): void {
    this.#status.changedByOthers(reason)
  }

  nodeChanged(node: NodeObject | undefined): void {
    this.#health.setNode(node)
  }

  /** A sync of this update starts; health-check ports change at once, without the mode. */
  started({ states, healthChecks, warnings }: StateUpdate): void {
    for (const { service, event, warning } of warnings) {
      this.#options.log.warn({ kind: 'Service', ...service, warning }, logTexts[event])
      this.#warnAbout('Service', service, event, warning)
    }
    const addresses = states.flatMap(({ family, node }) =>
      node.nodePorts.matchesAll ? [family === 'IPv4' ? '0.0.0.0' : '::'] : node.nodePorts.addresses,
    )
    this.#services.set(healthChecks, addresses)
  }

  synced(report: SyncReport): void {
    this.#status.synced(report)
    if (report.outcome !== 'failed') this.#health.synced(report.family)
    if (this.#health.isReady)
      this.#systemd?.ready(`Services are served in ${this.#options.mode} mode`)
    for (const failure of report.failed) this.#failedService(failure)
  }

  /** The API server answered a request, or did not. */
  tried({ method, status, host, seconds }: TriedRequest): void {
    const { metrics } = this.#options
    const code = status === undefined ? '<error>' : String(status)
    metrics.count('rest_client_requests_total', { code, method, host })
    metrics.observe('rest_client_request_duration_seconds', { verb: method, host }, seconds)
  }

  /** An object was skipped because it is malformed. Returns whether this is news. */
  malformed(kind: ObjectKind, identity: Identity, reason: string): boolean {
    return identity.name === '' || this.#warnAbout(kind, identity, 'MalformedObject', reason)
  }

  /** A part of an object has no effect; the rest is used. Returns whether this is news. */
  warned(kind: ObjectKind, identity: Identity, warning: string): boolean {
    return this.#warnAbout(kind, identity, 'PartLeftOut', warning)
  }

  /** The object has only these warnings now. One that comes back later is news again. */
  complaints(kind: ObjectKind, identity: Identity, warnings: readonly string[]): void {
    if (this.#recordedCount === 0) return
    for (const reason of ['MalformedObject', 'PartLeftOut']) {
      const key = warningKey(kind, identity, reason)
      const notes = this.#recorded.get(key)
      for (const note of notes ?? []) {
        if (!warnings.includes(note) && notes?.delete(note)) this.#recordedCount--
      }
      if (notes?.size === 0) this.#recorded.delete(key)
    }
  }

  /** Opens all ports until the signal. Rejects only with bindAddressHardFail. */
  async run(signal: AbortSignal): Promise<void> {
    const { events, nodeName, mode, running } = this.#options
    const regarding = { kind: 'Node', namespace: '', name: nodeName } as const
    const action = 'StartKubeProxy'
    const note = `kube-proxy starts in ${mode} mode`
    events.record({ type: 'Normal', reason: 'Starting', action, note, regarding })
    if (mode === 'ipvs') {
      const note = 'Kubernetes deprecates ipvs mode (KEP-5495); nftables mode takes its place'
      events.record({ type: 'Warning', reason: 'IPVSDeprecation', action, note, regarding })
    }
    for (const note of unsetModeWarnings(running.config, mode)) {
      events.record({ type: 'Warning', reason: 'ModeNotSet', action, note, regarding })
    }
    await Promise.all([
      runServers(
        {
          ...this.#options,
          ...{ health: this.#health, clients: this.#clients, status: this.#status },
          endpoints: this.endpoints,
        },
        signal,
      ),
      this.#services.run(signal),
      this.#systemd?.run(signal),
      this.endpoints.run(signal),
      events.run?.(signal),
    ])
  }

  #failedService({ key, reason, event = 'FailedToProgram' }: ServiceFailure): void {
    const [namespace = '', rest = ''] = key.split('/')
    const name = rest.split(':', 1)[0] ?? ''
    this.#warnAbout('Service', { namespace, name }, event, `${key}: ${reason}`)
  }

  #warnAbout(kind: ObjectKind, identity: Identity, reason: string, note: string): boolean {
    const key = warningKey(kind, identity, reason)
    if (this.#recorded.get(key)?.has(note)) return false
    // Each warning is recorded once. The limit bounds the memory.
    if (this.#recordedCount >= 1000) {
      this.#recorded.clear()
      this.#recordedCount = 0
    }
    this.#recorded.set(key, (this.#recorded.get(key) ?? new Set()).add(note))
    this.#recordedCount++
    this.#options.events.record({
      type: 'Warning',
      reason,
      action: reason === 'FailedToStartServiceHealthcheck' ? 'Listen' : 'Sync',
      note,
      regarding: { kind, ...identity },
    })
    return true
  }
}

function warningKey(kind: ObjectKind, { namespace, name }: Identity, reason: string): string {
  return JSON.stringify([kind, namespace, name, reason])
}

/** An update may wait two sync periods (H03). */
function timeoutOf(syncPeriodMs: number): number {
  return 2 * syncPeriodMs
}

/** The metrics that every Kubernetes component has about itself. */
function describeBuild({ metrics, version, running }: ObservationOptions): void {
  const [, major = '', minor = ''] = / v(\d+)\.(\d+)\)?$/.exec(version) ?? []
  metrics.gauge(
    'kubernetes_build_info',
    {
      git_version: version,
      major,
      minor,
      platform: `${process.platform}/${process.arch}`,
      compiler: `node ${process.version}`,
    },
    1,
  )
  for (const [name, { stage }] of Object.entries(featureGates)) {
    const value = isEnabled(running.config.featureGates, name) ? 1 : 0
    metrics.gauge('kubernetes_feature_enabled', { name, stage }, value)
  }
}
