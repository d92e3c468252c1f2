import { applyNodeSettings } from './node-settings.js'
import { messageOf } from '../errors.js'
import { modeLoaders } from '../modes/registry.js'
import type { Config } from '../config/config.js'
import type { Log, ModeDefinition } from '../modes/mode.js'

/**
 * What needs full privileges, done once before the daemon, which may then do with less (L14).
 * What fails here is only told: the daemon finds out what it can do without it.
 */
export async function prepareNode(config: Config, log: Log): Promise<void> {
  applyNodeSettings(config, log)
  if (config.mode === '' || config.mode === 'auto') return
  try {
    const definition: ModeDefinition = await modeLoaders[config.mode]()
    await definition.prepare?.(config, { log })
  } catch (error) {
    log.warn({ mode: config.mode, error: messageOf(error) }, 'this mode could not be prepared')
  }
}
