import { writeFile } from 'node:fs/promises'
import { ConfigError, messageOf } from '../errors.js'
import { parseFlags, type GivenFlags } from '../config/flags.js'
import { loadConfig, type LoadedConfig } from '../config/load.js'
import { placeOf } from '../config/settings.js'
import { configYaml } from '../config/write.js'
import { readConfiguration, type CommandConfiguration } from './configuration.js'
import { endWithoutThreads } from '../kernel/this-process.js'
import { logWarnings, processLogger } from './logging.js'
import { failureOf, stopSignal, versionText } from './process.js'
import type { Logger } from '../observe/logger.js'

/** `kube-proxy` without a subcommand: runs the proxy, or the action of a flag such as --cleanup. */
export async function runCommand(given: GivenFlags): Promise<void> {
  const configuration = await readConfiguration(given)
  const { loaded, actions } = configuration
  const log = processLogger(loaded.config.logging)
  logWarnings(log)
  for (const warning of loaded.warnings) log.warn({}, warning)
  if (actions.writeConfigTo !== '') {
    await writeConfig(actions.writeConfigTo, configYaml(loaded.config))
    log.info({ file: actions.writeConfigTo }, 'Wrote configuration')
  } else if (actions.cleanup) {
    refuseDryRun(loaded, '--cleanup')
    const { cleanup } = await import('./cleanup.js')
    await cleanup(log, { config: loaded.config })
  } else if (loaded.config.initOnly) {
    refuseDryRun(loaded, placeOf('initOnly', loaded.origins.get('initOnly')))
    const { prepareNode } = await import('../daemon/node-settings.js')
    await prepareNode(loaded.config, log)
    log.info({}, 'Initialized this node (--init-only)')
  } else await runUntilStopped(given, configuration, log)
}

/** Only the proxy can say what it would change; an action would change the node. */
function refuseDryRun({ config, origins }: LoadedConfig, action: string): void {
  if (!config.dryRun) return
  const dryRun = placeOf('dryRun', origins.get('dryRun'))
  throw new ConfigError(`${dryRun} cannot be combined with ${action}; leave one of them out`)
}

async function runUntilStopped(
  given: GivenFlags,
  { loaded, actions }: CommandConfiguration,
  log: Logger,
): Promise<void> {
  const { runDaemon } = await import('../daemon/daemon.js')
  // After the log has said that it writes its last lines at the exit.
  await endWithoutThreads()
  log.info({ version: versionText(), pid: process.pid, node: process.version }, 'Starting')
  const print = (text: string) => process.stdout.write(text)
  const file = actions.config
  const load = (text: string) => loadConfig(parseFlags(given), { name: file, text })
  const deps = {
    log,
    print,
    origins: loaded.origins,
    version: versionText(),
    configFile: file === '' ? undefined : { file, load, warnings: loaded.warnings },
  }
  try {
    // A terminal that is closed sends SIGHUP, and rules of userspace mode must not stay then.
    await runDaemon(loaded.config, deps, stopSignal('SIGHUP'))
  } catch (error) {
    // The reason goes to the log, because its reader may expect JSON lines.
    const { exitCode, texts } = failureOf(error)
    const [message = '', ...more] = texts
    log.error(more.length > 0 ? { detail: more.join('\n') } : {}, message)
    process.exitCode = exitCode
  }
}

async function writeConfig(path: string, text: string): Promise<void> {
  try {
    await writeFile(path, text)
  } catch (error) {
    throw new ConfigError(`--write-config-to: ${path} cannot be written: ${messageOf(error)}`, {
      cause: error,
    })
  }
}
