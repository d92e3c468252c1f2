import type { Command } from 'commander'
import { KernelError, messageOf } from '../errors.js'
import type { Log } from '../modes/mode.js'
import { modeLoaders, type ModeLoaders } from '../modes/registry.js'
import { defaultConfig } from '../config/load.js'
import { processLogger } from './logging.js'

/** Adds `kube-proxy cleanup`, the same as `kube-proxy --cleanup` (L15). */
export function addCleanupCommand(program: Command): void {
  program
    .command('cleanup')
    .description('remove everything that any mode has installed on this node')
    .action(() => cleanup(processLogger(defaultConfig().logging)))
}

/** Removes what each mode has installed. Throws at the end when that failed for some modes. */
export async function cleanup(log: Log, loaders: ModeLoaders = modeLoaders): Promise<void> {
  const failures: string[] = []
  for (const [name, load] of Object.entries(loaders)) {
    try {
      const definition = await load()
      await definition.cleanup({ log, resync: () => undefined, meter: silentMeter })
      log.info({ mode: name }, 'Cleaned up')
    } catch (error) {
      failures.push(`${name}: ${messageOf(error)}`)
    }
  }
  if (failures.length > 0) {
    throw new KernelError('failed', `clean up this node: ${failures.join('; ')}`)
  }
}

const silentMeter = {
  count: () => undefined,
  gauge: () => undefined,
  observe: () => undefined,
  forget: () => undefined,
}
