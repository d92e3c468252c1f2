import { applyNodeSettings } from './node-settings.js'
import { chooseMode, describe, warnPassedOver, type ChosenMode } from '../modes/choose.js'
import { ipFamilies, nodeNameOf } from './node-facts.js'
import { openSource, type OpenedSource } from '../sources/open-source.js'
import { startWarnings } from '../config/start-check.js'
import type { Config, ModeName } from '../config/config.js'
import type { IpFamily } from '../state/ip.js'
import type { Logger } from '../observe/logger.js'
import type { LoadedConfig } from '../config/load.js'
import { RunningConfig } from '../config/running.js'
import type { ConfigWatchOptions } from '../config/watch.js'

export interface DaemonDeps {
  readonly log: Logger
  /** Takes the text in which a dry run shows what it would do. */
  readonly print: (text: string) => void
  readonly version: string
  /** The origins of the values of the configuration, for /configz. */
  readonly origins: LoadedConfig['origins']
  /** The file of --config, which is followed, how its text is read, and what has been logged. */
  readonly configFile?:
    | (Pick<ConfigWatchOptions, 'file' | 'load'> & Pick<LoadedConfig, 'warnings'>)
    | undefined
}

/** What is decided before anything runs. */
export interface Setup {
  /** The configuration at the start. Values that can change later are in `running`. */
  readonly config: Config
  readonly running: RunningConfig
  readonly deps: DaemonDeps
  readonly nodeName: string
  readonly families: readonly IpFamily[]
  readonly objects: OpenedSource
  readonly chosen: ChosenMode
  /** The mode that runs. */
  readonly mode: ModeName
  /** The time of the start, in ms since 1970. */
  readonly startedAt: number
}

/**
 * Finds out what this node is, opens the source of objects, chooses the mode, checks the
 * configuration against both, and changes the settings of the kernel.
 */
export async function setUp(config: Config, deps: DaemonDeps): Promise<Setup> {
  const { log } = deps
  const startedAt = Date.now()
  const nodeName = nodeNameOf(config.hostnameOverride)
  const objects = await openObjects(config, nodeName, log)
  const chosen = await chooseMode({ mode: config.mode, fallback: config.modeFallback, config }, log)
  const { mode } = chosen
  // Only now: where IPv6 is a module, the tries of a mode have loaded it.
  const families = ipFamilies()
  logChoice(chosen, config.mode, log)
  for (const warning of startWarnings(config, mode, families)) log.warn({}, warning)
  if (!config.dryRun) applyNodeSettings(config, log)
  const running = new RunningConfig({ config, origins: deps.origins })
  return { config, running, deps, nodeName, families, objects, chosen, mode, startedAt }
}

/** The API server or the manifests. Nothing is requested before the source runs. */
async function openObjects(config: Config, nodeName: string, log: Logger): Promise<OpenedSource> {
  const { manifests, master } = config
  const { kubeconfig } = config.clientConnection
  if (manifests === '' && kubeconfig === '' && master === '') {
    // L03: kube-proxy logs the same.
    log.info({}, 'Neither --kubeconfig nor --master was given; using the in-cluster configuration')
  }
  return openSource({ manifests, kubeconfig, master, nodeName })
}

/** Why the requested mode does not run; empty when it does. */
export function fallbackText({ passedOver }: ChosenMode): string {
  return passedOver
    .map(({ mode, missing }) => `this node cannot run ${mode} mode: ${describe(missing)}`)
    .join('; ')
}

/** Logs which mode runs, and why it is not the one that was asked for. */
function logChoice(chosen: ChosenMode, requested: string, log: Logger): void {
  warnPassedOver(chosen, log)
  const { mode } = chosen
  // `kubectl logs … | grep Using` looks for this line.
  log.info({ mode, requested }, `Using ${mode} Proxier`)
}
