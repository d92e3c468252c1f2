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
    .description('remove everything any mode ever put on this node')
    .action(() => cleanup(processLogger(defaultConfig().logging)))
}

/** Removes what any mode left, each in its turn; throws at the end if some could not. */
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
