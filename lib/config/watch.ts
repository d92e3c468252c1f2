import { readFile } from 'node:fs/promises'
import { pause } from '../async.js'
import { codeOf, messageOf } from '../errors.js'
import { followPath } from '../kernel/follow-path.js'
import type { Config } from './config.js'
import { keyEntries } from './keys.js'
import { configWith, type LoadedConfig } from './load.js'
import { placeOf, throwProblems } from './settings.js'
import { validate } from './validate.js'
import { valueAt } from './write.js'

/** A value of the file that differs from the running one. */
export interface ConfigChange {
  readonly path: string
  readonly from: unknown
  readonly to: unknown
}

/** The effect of a new text of the configuration file. */
export interface ConfigUpdate {
  /** The configuration from now on: keys that need a restart still have their old value. */
  readonly config: Config
  readonly origins: LoadedConfig['origins']
  readonly warnings: LoadedConfig['warnings']
  /** Changes that take effect now. */
  readonly applied: readonly ConfigChange[]
  /** Changes that take effect at the next start. */
  readonly waiting: readonly ConfigChange[]
}

export interface ConfigWatchOptions {
  readonly file: string
  /** The configuration at the start. */
  readonly config: Config
  /** Checks a new text like the first one. Throws ConfigError. */
  readonly load: (text: string) => LoadedConfig
  /** Throws ConfigError for a configuration that cannot work on this node. */
  readonly check: (config: Config) => void
  /** The file cannot be used, so the last good configuration stays. */
  readonly invalid: (message: string) => void
  /** The file is good, also when it changes nothing. */
  readonly valid: (update: ConfigUpdate) => void
  readonly settleMs?: number
  readonly pollMs?: number
}

const usualSettleMs = 150

/**
 * Follows the configuration file until the signal, also when a ConfigMap volume swaps its symlinks
 * (L20). A file that is missing, half written or wrong changes nothing.
 */
export async function watchConfig(options: ConfigWatchOptions, signal: AbortSignal): Promise<void> {
  const { file, settleMs = usualSettleMs, pollMs, invalid, valid } = options
  let running = options.config
  let seen: string | undefined
  /** A pipe is no file: it is read once, at the start, and cannot be followed. */
  let isFile = false
  let isGone = false
  /** Reports a missing file once: a file that is removed while it is read is noticed twice. */
  const gone = () => {
    seen = undefined
    if (!isGone) invalid(`${file} cannot be read: it is gone, or not a file any more`)
    isGone = true
  }
  const look = async (): Promise<void> => {
    const before = seen
    // A file that comes back is reported, even with the same text.
    seen = undefined
    seen = await settledText(file, settleMs, signal)
    isGone = false
    if (signal.aborted || seen === before) return
    try {
      const update = updateOf(running, options.load(seen))
      options.check(update.config)
      running = update.config
      valid(update)
    } catch (error) {
      invalid(messageOf(error))
    }
  }
  await followPath(
    file,
    {
      matches: () => false,
      settleMs,
      ...(pollMs === undefined ? {} : { pollMs }),
      changed: async (files) => {
        isFile ||= files.size > 0
        if (files.size > 0) await look()
        else if (isFile) gone()
      },
      failed: (error) => {
        seen = undefined
        if (codeOf(error) === 'ENOENT') gone()
        else invalid(`${file} cannot be read: ${messageOf(error)}`)
      },
    },
    signal,
  )
}

/** The running configuration with all new values that need no restart. Throws ConfigError. */
function updateOf(running: Config, loaded: LoadedConfig): ConfigUpdate {
  const { config: wanted, origins, warnings } = loaded
  const applied: ConfigChange[] = []
  const waiting: ConfigChange[] = []
  const values: Record<string, unknown> = {}
  for (const [path, key] of keyEntries) {
    const [before, after] = [valueAt(running, path), valueAt(wanted, path)]
    values[path] = key.isLive ? after : before
    const [from, to] = [key.kind.toYaml(before), key.kind.toYaml(after)]
    if (JSON.stringify(from) === JSON.stringify(to)) continue
    const changes = key.isLive ? applied : waiting
    changes.push({ path, from, to })
  }
  const config = configWith(values)
  // The file may be valid only together with keys that wait for a restart, such as another mode.
  throwProblems(validate(config, (path) => placeOf(path, origins.get(path))).problems)
  return { config, origins, warnings, applied, waiting }
}

/** The text once it stays the same for a while: many programs write a file in several steps. */
async function settledText(file: string, settleMs: number, signal: AbortSignal): Promise<string> {
  for (let before = await readFile(file, 'utf8'); ;) {
    await pause(settleMs, signal)
    const now = await readFile(file, 'utf8')
    if (now === before || signal.aborted) return now
    before = now
  }
}
