import { chooseMode, describe, type ChosenMode } from './modes/choose.js'
import { followNodeAddresses } from './sources/node-addresses.js'
import { ipFamilies, nodeNameOf, setOomScore } from './node/facts.js'
import { isEnabled } from './config/feature-gates.js'
import { logEvents } from './observe/events.js'
import { Metrics } from './observe/metrics.js'
import { Observation } from './observe/observation.js'
import { modeSettings, nodePortAddresses, syncPeriods } from './config/mode-settings.js'
import { SyncLoop } from './sync/loop.js'
import { SyncObserver } from './observe/sync-observer.js'
import { Syncer } from './sync/syncer.js'
import { Tracker } from './state/tracker.js'
import { TrackerSink } from './sources/tracker-sink.js'
import type { Config } from './config/config.js'
import type { DetectLocal } from './state/node-view.js'
import type { Logger } from './observe/logger.js'
import type { Origin } from './config/settings.js'
import type { Mode, ModeContext, ModeSettings } from './modes/mode.js'
import type { Source } from './sources/source.js'

export interface DaemonDeps {
  readonly log: Logger
  /** Where values of the configuration came from, for /configz. */
  readonly origins?: ReadonlyMap<string, Origin>
  readonly version?: string
  /** Where a dry run shows what it would do. */
  readonly print: (text: string) => void
}

export interface Daemon {
  /** Runs until the signal, then drains. Rejects when it cannot run at all. */
  run(signal: AbortSignal): Promise<void>
}

/** The composition root: the only file that knows every room. */
export function createDaemon(config: Config, deps: DaemonDeps): Daemon {
  return { run: (signal) => runDaemon(config, deps, signal) }
}

/** Upstream's: the longest time between two syncs of the modes that need no periodic one (R04). */
const fullSyncPeriodMs = 3_600_000

async function runDaemon(config: Config, deps: DaemonDeps, signal: AbortSignal): Promise<void> {
  const { log } = deps
  const startedAt = Date.now()
  const nodeName = nodeNameOf(config.hostnameOverride)
  const families = ipFamilies()
  const oomFailure = setOomScore(config.oomScoreAdj)
  if (oomFailure !== undefined) log.debug({ error: oomFailure }, 'OOM score not set')

  const chosen = await chooseMode({ mode: config.mode, fallback: config.modeFallback }, log)
  const name = chosen.definition.name
  announce(chosen, config, log)
  const settings = modeSettings(config, name, families)
  const metrics = new Metrics({ mode: name })
  metrics.gauge('mode_active', { mode: name, requested: config.mode }, 1)

  const tracker = new Tracker({
    families,
    nodeName,
    bindAddress: config.bindAddress,
    nodePortAddresses: nodePortAddresses(config, name),
    detectLocal: detectLocal(config),
    allowsExternalIps: isEnabled(config.featureGates, 'AllowServiceExternalIPs'),
  })
  const observer = new SyncObserver({ mode: name, log, meter: metrics, now: Date.now, startedAt })
  const periods = syncPeriods(config, name)
  const observation = new Observation({
    config,
    origins: deps.origins ?? new Map<string, Origin>(),
    mode: name,
    nodeName,
    version: deps.version ?? '',
    families,
    syncPeriodMs: periods.syncMs,
    expectsNode: config.manifests === '',
    metrics,
    log,
    events: logEvents(log),
    startedAt,
  })
  const request = () => {
    observation.queued()
    loop.request()
  }

  const resync: ModeContext['resync'] = (reason, { full }) => {
    log.info({ reason, full }, 'sync asked for by the mode')
    if (full) syncer.forget()
    request()
  }
  const context: ModeContext = { log, meter: metrics, resync }
  const mode = config.dryRun
    ? dryMode(chosen, settings, deps.print)
    : await chosen.definition.create(settings, context)
  const syncer = new Syncer({ mode })
  const loop = new SyncLoop({
    minIntervalMs: periods.minMs,
    retryIntervalMs: periods.syncMs,
    maxIntervalMs: Math.max(periods.minMs, name === 'ipvs' ? periods.syncMs : fullSyncPeriodMs),
    onError: (error) => log.error({ err: error }, 'sync threw'),
    sync: async () => {
      const taken = tracker.take()
      observer.taken(taken)
      observation.taken(taken)
      let succeeded = true
      for (const state of taken.states) {
        const report = await syncer.sync(state)
        observer.synced(report, taken.changedServices)
        observation.synced(report)
        succeeded &&= report.outcome !== 'failed' && report.failed.length === 0
      }
      return succeeded
    },
  })

  const sink = new TrackerSink(tracker, nodeName, {
    changed: () => {
      if (sink.isComplete) request()
    },
    malformed: (kind, identity, reason) => {
      const { namespace, name: object } = identity
      metrics.count('malformed_objects_total', { kind })
      observation.malformed(kind, identity, reason)
      log.warn({ kind, namespace, name: object, reason }, 'object makes no sense and is skipped')
    },
    warned: (kind, { namespace, name: object }, warning) =>
      log.warn({ kind, namespace, name: object, warning }, 'part of an object is left out'),
    nodeChanged: (node) => observation.nodeChanged(node),
    failed: (message) => log.warn({ source: message }, 'source of objects failed, will retry'),
  })
  const source = await createSource(config, nodeName)

  await together(signal, [
    (inner) => mode.run(inner),
    (inner) => loop.run(inner),
    (inner) =>
      followNodeAddresses((addresses) => {
        tracker.setLocalAddresses(addresses)
        if (sink.isComplete) request()
      }, inner),
    (inner) => source.run(sink, inner),
    // A dry run changes nothing, and opening ports is a change; the real proxy may hold them.
    ...(config.dryRun ? [] : [(inner: AbortSignal) => observation.run(inner)]),
  ])
  log.info({}, 'stopping, rules stay in place')
  await mode.close()
}

/** Runs all until the signal or until one fails; then all are stopped and the failure is thrown. */
async function together(
  signal: AbortSignal,
  parts: readonly ((signal: AbortSignal) => Promise<void>)[],
): Promise<void> {
  const failure = new AbortController()
  const either = AbortSignal.any([signal, failure.signal])
  const results = await Promise.allSettled(
    parts.map((part) =>
      part(either).catch((error: unknown) => {
        failure.abort()
        throw error
      }),
    ),
  )
  for (const result of results) if (result.status === 'rejected') throw result.reason
}

/** The line that `kubectl logs … | grep Using` looks for, and why it is not the mode asked for. */
function announce(chosen: ChosenMode, config: Config, log: Logger): void {
  for (const { mode, missing } of chosen.passedOver) {
    log.warn({ mode, missing: describe(missing) }, `this node cannot run ${mode} mode`)
  }
  const mode = chosen.definition.name
  log.info({ mode, requested: config.mode }, `Using ${mode} Proxier`)
}

function detectLocal(config: Config): DetectLocal {
  switch (config.detectLocalMode) {
    case 'NodeCIDR':
      return { mode: 'NodeCIDR' }
    case 'BridgeInterface':
      return { mode: 'BridgeInterface', name: config.detectLocal.bridgeInterface }
    case 'InterfaceNamePrefix':
      return { mode: 'InterfaceNamePrefix', prefix: config.detectLocal.interfaceNamePrefix }
    case '':
    case 'ClusterCIDR': {
      const cidrs = config.clusterCIDR.split(',').map((text) => text.trim())
      return { mode: 'ClusterCIDR', cidrs: cidrs.filter((text) => text !== '') }
    }
  }
}

/** Plans like the mode, and shows what it would do instead of doing it. */
function dryMode(chosen: ChosenMode, settings: ModeSettings, print: (text: string) => void): Mode {
  const planner = chosen.definition.planner(settings)
  return {
    ...planner,
    plan: (state) => planner.plan(state),
    render: (plan) => planner.render(plan),
    renderChanges: (plan, previous) => planner.renderChanges(plan, previous),
    name: chosen.definition.name,
    apply: (plan, previous) => {
      const text = planner.renderChanges(plan, previous)
      print(text)
      const bytes = Buffer.byteLength(text)
      return Promise.resolve({ full: previous === undefined, bytes, objects: 0, failed: [] })
    },
    run: () => Promise.resolve(),
    close: () => Promise.resolve(),
  }
}

async function createSource(config: Config, nodeName: string): Promise<Source> {
  if (config.manifests !== '') {
    const { ManifestFolder } = await import('./sources/manifest-folder.js')
    return new ManifestFolder({ path: config.manifests })
  }
  const { openCluster } = await import('./sources/cluster-access.js')
  const { ApiClient } = await import('./sources/api-client.js')
  const { apiServerSource } = await import('./sources/api-server.js')
  const { kubeconfig } = config.clientConnection
  const access = await openCluster({ kubeconfig, master: config.master })
  return apiServerSource({ client: new ApiClient(access, 'kube-proxy-ts'), nodeName })
}
