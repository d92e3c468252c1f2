import { getHeapStatistics } from 'node:v8'
import { ApiEvents, logEvents } from '../observe/events.js'
import { DaemonRequests } from './daemon-requests.js'
import { followConfig } from './reload.js'
import { dryMode } from '../modes/dry-mode.js'
import {
  flowCleaning,
  knowAddresses,
  healthChecks,
  limitWaits,
  syncing,
  syncLoop,
  trackerSink,
} from './syncing.js'
import { clientLimit, openFilesLimit } from '../kernel/this-process.js'
import { clientsMax } from '../observe/client-connections.js'
import { freeStartMemory, memoryWatch } from './memory.js'
import { ObstacleWatch } from './obstacle-watch.js'
import { ownServerWatch } from './own-server.js'
import { objectLog } from '../observe/object-observer.js'
import { Metrics } from '../observe/metrics.js'
import { Observation } from '../observe/observation.js'
import { parseHostPort } from '../state/ip.js'
import { runLeftoverCleanup } from '../modes/leftovers.js'
import { fallbackText, setUp, type DaemonDeps, type Setup } from './setup.js'
import { startProgramsQuickly } from '../kernel/posix-spawn.js'
import { SyncObserver } from '../observe/sync-observer.js'
import { aborted, Bell, together } from '../async.js'
import { endHanging, tellWaits } from './slow-programs.js'
import { TrafficReading } from './traffic-reading.js'
import { Tracker } from '../state/tracker.js'
import { trackerSettings } from '../config/tracker-settings.js'
import type { FlowCounting } from './flow-counting.js'
import type { Log, Mode } from '../modes/mode.js'
import { watchedSink, type ObjectWatcher } from '../sources/source.js'
import type { SyncListener } from '../sync/sync-round.js'
import type { Config } from '../config/config.js'
import type { DashboardOptions } from '../page/dashboard/run.js'

/**
 * The composition root: the only file that knows every room. Runs until the signal, then drains.
 * Rejects when it cannot run at all.
 */
export async function runDaemon(config: Config, deps: DaemonDeps, signal: AbortSignal) {
  await startProgramsQuickly()
  // The start may wait a minute for a lock of another program, and has nothing to drain yet.
  const starting = tellWaits(deps.log, () => start(config, deps))
  const started = await Promise.race([starting, aborted(signal)])
  if (!started) {
    deps.log.info({}, 'stopping')
    return
  }
  const ending = AbortSignal.any([signal, started.requests.ending])
  await endHanging(deps.log, ending, () => run(started, ending))
}

async function start(config: Config, deps: DaemonDeps) {
  const { log } = deps
  const setup = await setUp(config, deps)
  const metrics = metricsOf(setup)
  const counting = await flowCountingOf(setup, metrics)
  const portFreed = new Bell()
  const { tracker, observer } = observedTracker(setup, metrics)
  const observation = await observe(setup, { metrics, counting, portFreed, tracker })
  const loop = await syncLoop(setup)
  const requests = daemonRequests({ log, loop, observation }, metrics, counting)

  const { families, chosen } = setup
  const mode = config.dryRun
    ? dryMode(chosen.definition, config, deps.print)
    : await chosen.definition.create(config, families, requests.modeContext)
  if (mode.descriptors) observation.share(mode.descriptors)
  const parts = { setup, metrics, counting, portFreed, tracker, observer, observation }
  return { ...parts, loop, requests, mode }
}

async function run(started: Awaited<ReturnType<typeof start>>, ending: AbortSignal) {
  const { setup, metrics, counting, portFreed, tracker, observer, observation } = started
  const { loop, requests, mode } = started
  const { config, objects } = setup
  const { log } = setup.deps
  const traffic = readBeforePages(metrics, mode, counting)
  const dashboard = await dashboardOf(setup, metrics, counting)

  const memory = memoryWatch(setup.mode, memoryLimits(), log)
  const obstacles = new ObstacleWatch({
    ...{ mode: setup.mode, log, changed: (texts) => dashboard?.obstacles(texts) },
  })
  const checks = healthChecks(tracker, { requests, observation })
  const flows = await flowCleaning(setup, mode, metrics)
  const allApplied = new AbortController()
  const sync = syncing({
    ...{ tracker, mode, requests, log, flows, allApplied, signal: ending },
    listeners: [
      observer,
      memory,
      ...ownServer(setup, log),
      observation,
      ...(config.dryRun ? [] : [checks, obstacles, ...present<SyncListener>(dashboard, counting)]),
    ],
  })
  const cleaned = (isLast: boolean) => flows?.again(isLast)
  const leftovers = { ...setup, inForce: allApplied.signal, cleaned, portFreed }
  const sink = trackerSink(setup, { tracker, requests, metrics, observation, memory })

  const watchers = present<ObjectWatcher>(objectLog(log), dashboard?.podNames, counting?.podNames)
  const reload = { tracker, sink, mode, loop, requests, observation, meter: metrics }
  const followAddresses = await knowAddresses(setup, reload)
  await together(ending, [
    (inner) => limitWaits(setup, sink, tracker, inner),
    (inner) => mode.run(inner),
    (inner) => loop.run(sync, inner, async () => mode.whenQuiet?.()),
    (inner) => objects.source.run(watchedSink(sink, watchers), inner),
    followAddresses,
    (inner) => followConfig(setup, reload, inner),
    (inner) => freeStartMemory(allApplied.signal, inner),
    ...unlessDry(setup, [
      ...[observation, checks, traffic, counting, dashboard, obstacles].map(partOf),
      (inner) => runLeftoverCleanup(leftovers, requests.modeContext, inner),
    ]),
  ])
  await mode.close()
  await Promise.all([counting?.end(), flows?.idle()])
}

const memoryLimits = () => ({
  limit: process.constrainedMemory(),
  heap: getHeapStatistics().heap_size_limit,
})

function ownServer({ objects, config }: Setup, log: Log): readonly SyncListener[] {
  const server = config.dryRun ? undefined : objects.client?.server
  return server === undefined ? [] : [ownServerWatch(server, log)]
}

/** A dry run changes nothing, and an open port is a change. The real proxy may hold the ports. */
function unlessDry({ config }: Setup, parts: readonly Part[]): readonly Part[] {
  return config.dryRun ? [] : parts
}

function daemonRequests(
  options: Omit<ConstructorParameters<typeof DaemonRequests>[0], 'forMode' | 'now'>,
  meter: Metrics,
  counting: FlowCounting | undefined,
): DaemonRequests {
  const now = () => performance.now()
  return new DaemonRequests({ ...options, now, forMode: counting?.forMode ?? { meter } })
}

function readBeforePages(
  metrics: Metrics,
  mode: Mode,
  counting: FlowCounting | undefined,
): TrafficReading {
  const traffic = new TrafficReading(() =>
    Promise.all([mode.countTraffic?.(), counting?.flows.countTraffic()]),
  )
  metrics.beforePage(() => traffic.read())
  return traffic
}

function present<T>(...all: readonly (T | undefined)[]): T[] {
  return all.flatMap((each) => each ?? [])
}

type Part = (signal: AbortSignal) => Promise<void>

function partOf(one: { run(signal: AbortSignal): Promise<void> } | undefined): Part {
  return (signal) => one?.run(signal) ?? Promise.resolve()
}

function metricsOf({ config, mode }: Setup): Metrics {
  const metrics = new Metrics({ mode })
  metrics.gauge('mode_active', { mode, requested: config.mode }, 1)
  return metrics
}

interface Observed {
  readonly metrics: Metrics
  readonly counting: FlowCounting | undefined
  readonly portFreed: Bell
  readonly tracker: Tracker
}

/** The health answers, the metrics page, Events, and the notifications to systemd. */
async function observe(
  setup: Setup,
  { metrics, counting, portFreed, tracker }: Observed,
): Promise<Observation> {
  const { config, deps, nodeName, chosen, objects } = setup
  const { log } = deps
  const { client } = objects
  const observation = new Observation({
    ...deps,
    ...setup,
    metrics,
    portFreed,
    tracker,
    flows: counting?.answer,
    fallback: config.mode === 'auto' ? '' : fallbackText(chosen),
    syncPeriodMs: chosen.definition.syncPeriods(config).syncMs,
    expectsNode: client !== undefined,
    connectionsMax: clientLimit(clientsMax),
    healthPortsMax: Math.floor(openFilesLimit() / 2),
    serviceManager: await serviceManager(),
    events:
      client === undefined || config.dryRun
        ? logEvents(log)
        : new ApiEvents({ client, nodeName, log, meter: metrics }),
  })
  client?.onTry((request) => observation.tried(request))
  return observation
}

/** systemd, if it has started this process and wants to be notified. Loaded only then. */
async function serviceManager() {
  if (process.env['NOTIFY_SOCKET'] === undefined) return undefined
  const { serviceManagerOf } = await import('../kernel/service-manager.js')
  return serviceManagerOf(process.env)
}

/**
 * Returns the current configuration and a planner for it. A new configuration gets a new planner.
 */
function planReader({ running, chosen: { definition } }: Setup): DashboardOptions['current'] {
  let made = { config: running.config, planner: definition.planner(running.config) }
  return () => {
    const { config } = running
    if (config !== made.config) made = { config, planner: definition.planner(config) }
    return made
  }
}

/**
 * The counting of connections for `--flows`. It is loaded only then, and not for a dry run, which
 * neither changes nor opens anything.
 */
async function flowCountingOf(setup: Setup, metrics: Metrics): Promise<FlowCounting | undefined> {
  if (!setup.config.flows.enabled || setup.config.dryRun) return undefined
  const { flowCounting } = await import('./flow-counting.js')
  return flowCounting(setup, metrics)
}

/** The page that shows this daemon, if it has an address. It is loaded only then. */
async function dashboardOf(setup: Setup, metrics: Metrics, counting: FlowCounting | undefined) {
  const { config, deps, mode, nodeName } = setup
  const address = parseHostPort(config.dashboardAddress)
  if (!address || config.dryRun) return undefined
  const { openDashboard } = await import('../page/dashboard/run.js')
  const files = {
    tokenFile: config.dashboardTokenFile,
    tlsCertFile: config.dashboardTLSCertFile,
    tlsKeyFile: config.dashboardTLSKeyFile,
  }
  return openDashboard({
    ...{ current: planReader(setup), metrics, flows: counting?.flows.lines },
    ...{ mode, nodeName, log: deps.log, address, files },
  })
}

/** The tracker, and the observer that counts its changes. */
function observedTracker(setup: Setup, metrics: Metrics) {
  const { config, deps, mode, startedAt, nodeName, families } = setup
  const age = () => performance.now()
  const own = { mode, log: deps.log, meter: metrics, now: Date.now, age, startedAt }
  const observer = new SyncObserver(own)
  const tracker = new Tracker({
    ...trackerSettings(config, mode, { nodeName, families }),
    noticed: (kind, waiting) => observer.noticed(kind, waiting),
  })
  return { tracker, observer }
}
