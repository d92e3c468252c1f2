import { readFile } from 'node:fs/promises'
import { messageOf } from '../errors.js'
import { followPath } from '../kernel/follow-path.js'
import type { Config } from './config.js'
import { keyEntries } from './keys.js'
import type { LoadedConfig } from './load.js'
import { valueAt } from './write.js'

/** A value that a new configuration file changes. */
export interface ConfigChange {
  readonly path: string
  readonly from: unknown
  readonly to: unknown
  /** It takes effect without a restart. */
  readonly isLive: boolean
}

export interface ConfigWatchOptions {
  readonly file: string
  readonly loaded: LoadedConfig
  /** Checks a new text like the first one. Throws ConfigError. */
  readonly load: (text: string) => LoadedConfig
  /** The new text is invalid, so the old configuration stays. */
  readonly invalid: (message: string) => void
  /** The configuration changed; `config` is the new one. */
  readonly changed: (changes: readonly ConfigChange[], config: Config) => void
  readonly settleMs?: number
  readonly pollMs?: number
}

/** Changes that take effect at once. All others need a restart, as upstream (L19). */
const live: ReadonlySet<string> = new Set(['logging.verbosity'])

/**
 * Follows the configuration file until the signal, also when a ConfigMap volume swaps its symlinks
 * (L20). A text with the same values changes nothing.
 */
export async function watchConfig(options: ConfigWatchOptions, signal: AbortSignal): Promise<void> {
  const { file, settleMs, pollMs } = options
  let current = options.loaded.config
  let seen: string | undefined
  await followPath(
    file,
    {
      matches: () => false,
      ...(settleMs === undefined ? {} : { settleMs }),
      ...(pollMs === undefined ? {} : { pollMs }),
      changed: async () => {
        const text = await readFile(file, 'utf8').catch(() => undefined)
        // A missing file is about to be replaced. The old configuration stays until then.
        if (text === undefined || text === seen) return
        seen = text
        try {
          const next = options.load(text).config
          const changes = configChanges(current, next)
          current = next
          if (changes.length > 0) options.changed(changes, next)
        } catch (error) {
          options.invalid(messageOf(error))
        }
      },
    },
    signal,
  )
}

export function configChanges(from: Config, to: Config): readonly ConfigChange[] {
  return keyEntries.flatMap(([path, key]) => {
    const before = key.kind.toYaml(valueAt(from, path))
    const after = key.kind.toYaml(valueAt(to, path))
    if (JSON.stringify(before) === JSON.stringify(after)) return []
    return [{ path, from: before, to: after, isLive: live.has(path) }]
  })
}
