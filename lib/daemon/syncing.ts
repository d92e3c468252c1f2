import type { Conntrack } from '../kernel/conntrack.js'
import { familyWatch } from './node-facts.js'
import { StuckClients } from '../sync/stuck-clients.js'
import { FlowCleaner } from '../sync/flow-cleaner.js'
import { DepartedFlows } from '../sync/departed-flows.js'
import { addressReader, followNodeAddresses } from '../sources/node-addresses.js'
import { CheckThread, type CheckThreadOptions } from '../sources/health/check-thread.js'
import { HealthChecks } from '../sources/health/health-checks.js'
import { objectObserver } from '../observe/object-observer.js'
import { messageOf } from '../errors.js'
import { pause } from '../async.js'
import { openInIpvs } from '../kernel/ipvs/connections.js'
import { openProcessorClock } from '../kernel/this-process.js'
import { SyncLoop, type SyncIntervals } from '../sync/loop.js'
import { Syncer } from '../sync/syncer.js'
import { syncRound, type SyncListener } from '../sync/sync-round.js'
import { tellWaits } from './slow-programs.js'
import { TrackerSink } from '../sources/tracker-sink.js'
import type { ChosenMode } from '../modes/choose.js'
import type { Config } from '../config/config.js'
import type { DesiredState } from '../state/desired-state.js'
import type { IpFamily } from '../state/ip.js'
import type { DaemonRequests } from './daemon-requests.js'
import type { Logger } from '../observe/logger.js'
import type { MemoryWatch } from './memory.js'
import type { Metrics } from '../observe/metrics.js'
import type { Log, Mode } from '../modes/mode.js'
import type { Observation } from '../observe/observation.js'
import type { Setup } from './setup.js'
import type { Tracker } from '../state/tracker.js'

/** The longest time between two syncs of the modes that need no periodic one (R04). */
const fullSyncPeriodMs = 3_600_000

export function syncIntervals(config: Config, { definition, mode }: ChosenMode): SyncIntervals {
  const { minMs, syncMs } = definition.syncPeriods(config)
  return {
    minIntervalMs: minMs,
    retryIntervalMs: syncMs,
    maxIntervalMs: Math.max(
      minMs === 'measured' ? 0 : minMs,
      mode === 'ipvs' ? syncMs : fullSyncPeriodMs,
    ),
  }
}

export async function syncLoop({ config, deps, chosen }: Setup): Promise<SyncLoop> {
  return new SyncLoop({
    ...syncIntervals(config, chosen),
    onError: (error) => deps.log.error({ err: error }, 'sync threw'),
    processorMs: await openProcessorClock(),
  })
}

/** Cleans the kernel's table of connections after the syncs. */
interface FlowCleaning {
  applied(state: DesiredState, late: readonly string[]): void
  /** Until now, rules of another mode may have taken clients that came after the last cleaning. */
  again(isLast: boolean): void
  /** Resolves once no deletion is running. */
  idle(): Promise<void>
}

/** Undefined where nothing is to be cleaned. The code for the kernel's table is not loaded then. */
export async function flowCleaning(
  { config, deps: { log } }: Setup,
  mode: Mode,
  metrics: Metrics,
): Promise<FlowCleaning | undefined> {
  if (config.dryRun || mode.hasNoRules) return undefined
  const kernel = await loadConntrack(log)
  if (!kernel) return undefined
  let opened: Conntrack | undefined
  // All three share one table, because each table has sockets and their buffers.
  const table = () => (opened ??= new kernel.Conntrack())
  const now = () => performance.now()
  const stuck = new StuckClients({ table, log, now, openInIpvs })
  // Such a mode also ends its connections to endpoints itself.
  const isByMode = mode.staleFlows !== undefined
  const stale = isByMode ? undefined : new FlowCleaner({ table, log, meter: metrics, now })
  const departed = isByMode ? undefined : new DepartedFlows({ table, log })
  const states = new Map<IpFamily, DesiredState>()
  const applied = (state: DesiredState, late: readonly string[]) => {
    states.set(state.family, state)
    stale?.applied(state, late)
    departed?.applied(state)
    stuck.applied(state, late)
  }
  return {
    applied,
    again(isLast) {
      mode.staleFlows?.again(isLast)
      for (const state of states.values()) applied(state, [...state.services.keys()])
    },
    idle: async () => {
      await stale?.idle()
      await stuck.idle()
    },
  }
}

/** Undefined where koffi does not load. */
async function loadConntrack(
  log: Logger,
): Promise<typeof import('../kernel/conntrack.js') | undefined> {
  try {
    return await import('../kernel/conntrack.js')
  } catch (error) {
    const text =
      'a UDP client stays with an endpoint that is gone while it sends: see kube-proxy check'
    log.warn({ reason: messageOf(error) }, text)
    return undefined
  }
}

interface SyncingParts {
  readonly tracker: Pick<Tracker, 'take'>
  readonly mode: Pick<Mode, 'plan' | 'apply' | 'forget'>
  readonly requests: Pick<DaemonRequests, 'takeFull'>
  readonly log: Log
  readonly listeners: readonly SyncListener[]
  readonly flows: FlowCleaning | undefined
  /** Aborted once the rules of every family are in the kernel. */
  readonly allApplied: AbortController
  /** Ends this process. */
  readonly signal: AbortSignal
}

/** One sync, as the loop runs it. */
export function syncing(parts: SyncingParts): () => Promise<boolean> {
  const { tracker, mode, requests, log, listeners, flows, allApplied, signal } = parts
  const syncer = new Syncer(mode)
  const round = () =>
    syncRound({
      tracker,
      syncer: {
        sync: (state) => {
          // Asked before each family: the mode may see a foreign change while the other one syncs.
          if (requests.takeFull()) syncer.forget()
          return syncer.sync(state)
        },
      },
      ...{ listeners, signal },
      applied: (state, late) => flows?.applied(state, late),
      // A reason is given, because the default one is an error, which costs a stack trace.
      allApplied: () => allApplied.abort('applied'),
    })
  // The first one belongs to the start.
  let isFirst = true
  return () => {
    if (!isFirst) return round()
    isFirst = false
    return tellWaits(log, round)
  }
}

interface SinkParts {
  readonly tracker: Tracker
  readonly requests: DaemonRequests
  readonly metrics: Metrics
  readonly observation: Observation
  readonly memory: MemoryWatch
}

/** Takes objects into the tracker. No sync is requested before enough of them are known (R01). */
export function trackerSink({ deps, nodeName }: Setup, parts: SinkParts): TrackerSink {
  const { tracker, requests, metrics, observation, memory } = parts
  return new TrackerSink(tracker, nodeName, {
    came: memory.came,
    ...objectObserver({ log: deps.log, meter: metrics, observation, now: () => performance.now() }),
    changed: (_kind, isComplete) => {
      if (isComplete) requests.sync()
    },
  })
}

/** The checks follow the states, and their results change the next states. */
export function healthChecks(
  tracker: Tracker,
  { requests, observation }: Pick<SinkParts, 'requests' | 'observation'>,
): HealthChecks {
  const requestSync = () => requests.sync()
  const checker = (options: CheckThreadOptions) => new CheckThread(options)
  return new HealthChecks({ tracker, checker, requestSync, listener: observation.endpoints })
}

/** How long the first rules wait for the ServiceCIDRs. Without them only one rule is missing. */
const serviceCidrPatienceMs = 1_000
/** L04: how long the first rules wait for the object of this node. */
const nodePatienceMs = 30_000

interface WaitingSetup extends Pick<Setup, 'nodeName'> {
  readonly config: Pick<Config, 'detectLocalMode'>
  /** Manifests have no client, and need not have the node. */
  readonly objects: { readonly client: object | undefined }
  readonly deps: { readonly log: Pick<Logger, 'warn'> }
}

/** Lets the first sync begin without objects that may never come. */
export async function limitWaits(
  { nodeName, config, objects, deps }: WaitingSetup,
  sink: Pick<TrackerSink, 'stopWaitingFor'>,
  tracker: Pick<Tracker, 'knowsNode' | 'knowsPodCidrs'>,
  signal: AbortSignal,
): Promise<void> {
  await pause(serviceCidrPatienceMs, signal)
  if (!signal.aborted) sink.stopWaitingFor('ServiceCIDR')
  await pause(nodePatienceMs - serviceCidrPatienceMs, signal)
  if (signal.aborted) return
  sink.stopWaitingFor('Node')
  // A list without the node ends the wait, too.
  if (objects.client && !tracker.knowsNode) {
    const text = 'Node object not found yet; going on without it, and /healthz answers 503'
    deps.log.warn({ node: nodeName }, text)
  }
  if (config.detectLocalMode === 'NodeCIDR' && !tracker.knowsPodCidrs) {
    const text =
      'detectLocalMode is NodeCIDR, and no Node object tells a podCIDR of this node: traffic from ' +
      'pods is not recognized, and traffic to ClusterIPs is not masqueraded, until one does'
    deps.log.warn({ node: nodeName }, text)
  }
}

interface AddressParts extends Pick<SinkParts, 'tracker' | 'requests'> {
  readonly sink: TrackerSink
}

/**
 * Puts the addresses of this node into the tracker, before any object can come. The result keeps
 * them there.
 */
export async function knowAddresses(
  { families, deps }: Setup,
  { tracker, sink, requests }: AddressParts,
): Promise<(signal: AbortSignal) => Promise<void>> {
  const warnOfNewFamily = familyWatch(families, deps.log)
  const read = await addressReader()
  const known = await read()
  tracker.setLocalAddresses(known ?? [])
  const changed = (addresses: readonly string[]) => {
    tracker.setLocalAddresses(addresses)
    warnOfNewFamily()
    if (sink.isComplete) requests.sync()
  }
  return (signal) => followNodeAddresses(changed, signal, { read, known })
}
