import { readFile } from 'node:fs/promises'
import { ConfigError, messageOf } from '../errors.js'
import { parseFlags, type Actions, type GivenFlags } from '../config/flags.js'
import { loadConfig, type LoadedConfig } from '../config/load.js'

export interface CommandConfiguration {
  readonly loaded: LoadedConfig
  readonly actions: Actions
}

/** Reads the flags and the file that they name. Throws ConfigError for every mistake in them. */
export async function readConfiguration(given: GivenFlags): Promise<CommandConfiguration> {
  const flags = parseFlags(given)
  const { config: name } = flags.actions
  const file = name === '' ? undefined : { name, text: await readText(name) }
  return { loaded: loadConfig(flags, file), actions: flags.actions }
}

async function readText(path: string): Promise<string> {
  try {
    return await readFile(path, 'utf8')
  } catch (error) {
    throw new ConfigError(`--config: ${path} cannot be read: ${messageOf(error)}`, {
      cause: error,
    })
  }
}
