import { applyNodeSettings } from './node-settings.js'
import { startWarnings } from '../config/start-check.js'
import { syncIntervals } from './syncing.js'
import { trackerSettings } from '../config/tracker-settings.js'
import { watchConfig, type ConfigChange, type ConfigUpdate } from '../config/watch.js'
import type { Config } from '../config/config.js'
import type { DaemonRequests } from './daemon-requests.js'
import type { Meter, Mode } from '../modes/mode.js'
import type { Observation } from '../observe/observation.js'
import type { Setup } from './setup.js'
import type { SyncLoop } from '../sync/loop.js'
import type { Tracker } from '../state/tracker.js'
import type { TrackerSink } from '../sources/tracker-sink.js'

interface ReloadParts {
  readonly tracker: Tracker
  readonly sink: Pick<TrackerSink, 'isComplete'>
  readonly mode: Pick<Mode, 'reconfigure'>
  readonly loop: Pick<SyncLoop, 'setIntervals'>
  readonly requests: DaemonRequests
  readonly observation: Pick<Observation, 'setSyncPeriod'>
  readonly meter: Meter
}

/** Follows the configuration file, and applies all changes that need no restart. */
export async function followConfig(
  setup: Setup,
  parts: ReloadParts,
  signal: AbortSignal,
): Promise<void> {
  const { deps, running, mode, families } = setup
  const { log, configFile } = deps
  parts.meter.gauge('config_file_valid', {}, 1)
  if (!configFile) return
  const newWaiting = newsFilter<ConfigChange>()
  const newWarnings = newsFilter<string>()
  newWarnings(configFile.warnings)
  await watchConfig(
    {
      ...configFile,
      config: running.config,
      check: (config) => void startWarnings(config, mode, families),
      invalid: (problem) => {
        log.error({ error: problem }, 'configuration file is wrong, the last good one stays in use')
        parts.meter.gauge('config_file_valid', {}, 0)
        running.refuse(problem)
      },
      valid: (update) => {
        if (running.problem !== undefined) log.info({}, 'configuration file is good again')
        parts.meter.gauge('config_file_valid', {}, 1)
        parts.meter.gauge('config_keys_waiting_for_restart', {}, update.waiting.length)
        const before = running.config
        running.use(update)
        for (const warning of newWarnings(update.warnings)) log.warn({}, warning)
        if (update.applied.length > 0) apply(update, before, setup, parts)
        for (const change of newWaiting(update.waiting)) {
          log.warn({ ...change }, 'this key needs a restart; the old value stays in use until then')
        }
      },
    },
    signal,
  )
}

function apply(
  { config, applied }: ConfigUpdate,
  before: Config,
  setup: Setup,
  parts: ReloadParts,
): void {
  const { deps, mode, nodeName, families, chosen } = setup
  const { log } = deps
  const { tracker, sink, loop, requests, observation } = parts
  for (const change of applied) log.info({ ...change }, 'configuration changed')
  const changes = (prefix: string) => applied.some(({ path }) => path.startsWith(prefix))
  if (changes('logging.verbosity')) log.setVerbosity(config.logging.verbosity)
  const isForNode = changes('conntrack.') || changes('oomScoreAdj')
  if (isForNode && !config.dryRun) applyNodeSettings(config, log)
  const known = new Set(startWarnings(before, mode, families))
  for (const warning of startWarnings(config, mode, families)) {
    if (!known.has(warning)) log.warn({}, warning)
  }
  tracker.setNodeSettings(trackerSettings(config, mode, { nodeName, families }))
  loop.setIntervals(syncIntervals(config, chosen))
  observation.setSyncPeriod(chosen.definition.syncPeriods(config).syncMs)
  if (parts.mode.reconfigure(config)) requests.writeAnew()
  // Before all objects are known, a sync would remove the rules of the previous run.
  if (sink.isComplete) requests.sync()
}

/** Lets through what the call before did not have, such as a key that waits with another value. */
function newsFilter<T>(): (items: readonly T[]) => readonly T[] {
  let told = new Set<string>()
  return (items) => {
    const ids = new Map(items.map((item) => [JSON.stringify(item), item]))
    const news = [...ids].flatMap(([id, item]) => (told.has(id) ? [] : [item]))
    told = new Set(ids.keys())
    return news
  }
}
