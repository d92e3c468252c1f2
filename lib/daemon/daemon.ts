import { apiEvents } from '../observe/api-events.js'
import { applyNodeSettings } from './node-settings.js'
import { newsOnly } from '../observe/news-only.js'
import { runLeftoverCleanup } from '../modes/leftovers.js'
import { chooseMode, describe, type ChosenMode } from '../modes/choose.js'
import { Conntrack } from '../kernel/conntrack.js'
import { dryMode } from '../modes/dry-mode.js'
import { FlowCleaner } from '../sync/flow-cleaner.js'
import { followNodeAddresses } from '../sources/node-addresses.js'
import { ipFamilies, nodeNameOf } from './node-facts.js'
import { logEvents } from '../observe/events.js'
import { Metrics } from '../observe/metrics.js'
import { Observation } from '../observe/observation.js'
import { parseHostPort } from '../config/addresses.js'
import { openSource } from '../sources/open-source.js'
import { systemClock } from '../sync/clock.js'
import { startWarnings } from '../config/start-check.js'
import { SyncLoop } from '../sync/loop.js'
import { SyncObserver } from '../observe/sync-observer.js'
import { Syncer } from '../sync/syncer.js'
import { syncRound } from '../sync/sync-round.js'
import { together } from '../async.js'
import { Tracker } from '../state/tracker.js'
import { trackerSettings } from '../config/tracker-settings.js'
import { TrackerSink, type SinkListener } from '../sources/tracker-sink.js'
import type { DashboardOptions } from '../page/dashboard/run.js'
import type { Config } from '../config/config.js'
import type { Logger } from '../observe/logger.js'
import type { ModeContext } from '../modes/mode.js'
import type { Origin } from '../config/settings.js'

export interface DaemonDeps {
  readonly log: Logger
  /** Where a dry run shows what it would do. */
  readonly print: (text: string) => void
  readonly version: string
  /** Where values of the configuration came from, for /configz. */
  readonly origins: ReadonlyMap<string, Origin>
}

export interface Daemon {
  /** Runs until the signal, then drains. Rejects when it cannot run at all. */
  run(signal: AbortSignal): Promise<void>
}

/** The composition root: the only file that knows every room. */
export function createDaemon(config: Config, deps: DaemonDeps): Daemon {
  return { run: (signal) => runDaemon(config, deps, signal) }
}

/** The longest time between two syncs of the modes that need no periodic one (R04). */
const fullSyncPeriodMs = 3_600_000

/** While the API server is away four lists fail every few seconds; each is told this often. */
const repeatedFailureMs = 30_000

/** L04: how long the first rules wait for this node's object. */
const nodePatienceMs = 30_000

async function runDaemon(config: Config, deps: DaemonDeps, signal: AbortSignal): Promise<void> {
  const { log } = deps
  const startedAt = Date.now()
  const nodeName = nodeNameOf(config.hostnameOverride)
  const families = ipFamilies()
  const { kubeconfig } = config.clientConnection
  if (config.manifests === '' && kubeconfig === '' && config.master === '') {
    // L03: what a kube-proxy without either has always said.
    log.info({}, 'Neither --kubeconfig nor --master was given; using the in-cluster configuration')
  }
  const { source, client } = await openSource({
    manifests: config.manifests,
    kubeconfig,
    master: config.master,
    nodeName,
    answered: (request) => observation.answered(request),
  })
  const chosen = await chooseMode({ mode: config.mode, fallback: config.modeFallback }, log)
  const { mode } = chosen
  announce(chosen, config, log)
  for (const warning of startWarnings(config, mode, families)) log.warn({}, warning)
  if (!config.dryRun) applyNodeSettings(config, log)

  const periods = chosen.definition.syncPeriods(config)
  const metrics = new Metrics({ mode })
  metrics.gauge('mode_active', { mode, requested: config.mode }, 1)
  const tracker = new Tracker(trackerSettings(config, mode, { nodeName, families }))
  const observer = new SyncObserver({ mode, log, meter: metrics, now: Date.now, startedAt })
  const flows = new FlowCleaner({
    openTable: () => new Conntrack(),
    log,
    meter: metrics,
    now: () => performance.now(),
  })
  const observation = new Observation({
    ...deps,
    config,
    mode,
    nodeName,
    families,
    syncPeriodMs: periods.syncMs,
    expectsNode: client !== undefined,
    serviceManager: await serviceManager(),
    metrics,
    events:
      client === undefined || config.dryRun
        ? logEvents(log)
        : apiEvents({ post: (path, body) => client.create(path, body, signal), nodeName, log }),
    startedAt,
  })

  const ending = new AbortController()
  const requestSync = () => {
    log.debug({}, 'change seen, sync asked for')
    observation.queued()
    loop.request()
  }
  const context: ModeContext = {
    log,
    meter: metrics,
    resync: (reason, { full }) => {
      log.info({ reason, full }, 'sync asked for by the mode')
      if (full) syncer.forget()
      requestSync()
    },
    stop: (reason) => {
      log.info({ reason }, 'the mode asks to end')
      ending.abort()
    },
  }
  const running = config.dryRun
    ? dryMode(chosen.definition, config, deps.print)
    : await chosen.definition.create(config, families, context)
  metrics.beforePage(() => running.countTraffic?.())
  const syncer = new Syncer({ mode: running })

  const dashboard = await dashboardOf(config, {
    ...{ mode, nodeName, metrics, log },
    planner: chosen.definition.planner(config),
  })
  const inForce = new AbortController()
  const loop = new SyncLoop({
    minIntervalMs: periods.minMs,
    retryIntervalMs: periods.syncMs,
    maxIntervalMs: Math.max(periods.minMs, mode === 'ipvs' ? periods.syncMs : fullSyncPeriodMs),
    onError: (error) => log.error({ err: error }, 'sync threw'),
    sync: () =>
      syncRound({
        tracker,
        syncer,
        witnesses: [observer, observation, ...(dashboard ? [dashboard] : [])],
        applied: (state) => {
          // A dry run touches no connection either.
          if (!config.dryRun && !running.cleansFlows) flows.applied(state)
        },
        inForce: () => inForce.abort(),
      }),
  })
  const sink: TrackerSink = new TrackerSink(tracker, nodeName, {
    ...objectNews({ log, metrics, observation }),
    changed: () => {
      if (sink.isComplete) requestSync()
    },
  })

  await together(AbortSignal.any([signal, ending.signal]), [
    async (inner) => {
      await systemClock.sleep(nodePatienceMs, inner)
      if (!inner.aborted && sink.doWithout('Node')) {
        log.warn({ node: nodeName }, 'Node object not found yet; going on without it')
      }
    },
    (inner) => running.run(inner),
    (inner) => loop.run(inner),
    (inner) => source.run(dashboard?.readingAlong(sink) ?? sink, inner),
    (inner) =>
      followNodeAddresses((addresses) => {
        tracker.setLocalAddresses(addresses)
        if (sink.isComplete) requestSync()
      }, inner),
    // A dry run changes nothing, and opening ports is a change; the real proxy may hold them.
    ...(config.dryRun
      ? []
      : [
          (inner: AbortSignal) => observation.run(inner),
          ...(dashboard ? [(inner: AbortSignal) => dashboard.run(inner)] : []),
          (inner: AbortSignal) => runLeftoverCleanup(mode, context, inForce.signal, inner),
        ]),
  ])
  log.info({}, 'stopping')
  await running.close()
  await flows.idle()
}

interface NewsDeps {
  readonly log: Logger
  readonly metrics: Metrics
  readonly observation: Observation
}

/** What is said about objects as they come in. */
function objectNews({ log, metrics, observation }: NewsDeps): Omit<SinkListener, 'changed'> {
  const isNews = newsOnly({ forMs: repeatedFailureMs, now: Date.now })
  return {
    malformed: (kind, identity, reason) => {
      metrics.count('malformed_objects_total', { kind })
      log.warn({ kind, ...identity, reason }, 'object makes no sense and is skipped')
      observation.malformed(kind, identity, reason)
    },
    warned: (kind, { namespace, name }, warning) =>
      log.warn({ kind, namespace, name, warning }, 'part of an object is left out'),
    nodeChanged: (node) => observation.nodeChanged(node),
    failed: (message) => {
      const text = 'source of objects failed, will retry'
      if (isNews(message)) log.warn({ reason: message }, text)
      else log.debug({ reason: message }, text)
    },
  }
}

/** The page over this daemon; nobody else pays for loading it. */
async function dashboardOf(
  config: Config,
  parts: Omit<DashboardOptions, 'address' | 'config' | 'files'>,
) {
  const address = parseHostPort(config.dashboardAddress)
  if (!address || config.dryRun) return undefined
  const { openDashboard } = await import('../page/dashboard/run.js')
  const files = {
    tokenFile: config.dashboardTokenFile,
    tlsCertFile: config.dashboardTLSCertFile,
    tlsKeyFile: config.dashboardTLSKeyFile,
  }
  return openDashboard({ ...parts, config, address, files })
}

/** Under systemd: whoever is told that the rules are in force. Nobody else pays for loading it. */
async function serviceManager() {
  if (process.env['NOTIFY_SOCKET'] === undefined) return undefined
  const { serviceManagerOf } = await import('../kernel/service-manager.js')
  return serviceManagerOf(process.env)
}

/** The line that `kubectl logs … | grep Using` looks for, and why it is not the mode asked for. */
function announce(chosen: ChosenMode, config: Config, log: Logger): void {
  for (const { mode, missing } of chosen.passedOver) {
    log.warn({ mode, missing: describe(missing) }, `this node cannot run ${mode} mode`)
  }
  const { mode } = chosen
  log.info({ mode, requested: config.mode }, `Using ${mode} Proxier`)
}
