import { aborted } from '../async.js'
import type { Config } from './config.js'
import type { LoadedConfig } from './load.js'
import type { ConfigChange, ConfigUpdate } from './watch.js'

type Loaded = Pick<LoadedConfig, 'config' | 'origins'>

/** The configuration that is in force now, and what is known about its file. */
export class RunningConfig {
  #loaded: Loaded
  #waiting: readonly ConfigChange[] = []
  #problem: string | undefined
  readonly #listeners = new Set<() => void>()

  constructor(loaded: Loaded) {
    this.#loaded = loaded
  }

  get config(): Config {
    return this.#loaded.config
  }

  /** Where values come from, by path. */
  get origins(): LoadedConfig['origins'] {
    return this.#loaded.origins
  }

  /** What the file says and only a restart brings into force. */
  get waiting(): readonly ConfigChange[] {
    return this.#waiting
  }

  /** Why the file, as it was seen last, is not used. */
  get problem(): string | undefined {
    return this.#problem
  }

  use(update: ConfigUpdate): void {
    this.#loaded = update
    this.#waiting = update.waiting
    this.#problem = undefined
    for (const listener of this.#listeners) listener()
  }

  /** The last good configuration stays. */
  refuse(problem: string): void {
    this.#problem = problem
  }

  /** Works with a value of the configuration until the signal, and begins anew when it changes. */
  async follow(
    read: (config: Config) => string,
    work: (value: string, signal: AbortSignal) => Promise<void>,
    signal: AbortSignal,
  ): Promise<void> {
    while (!signal.aborted) {
      const value = read(this.config)
      const changed = new AbortController()
      const look = () => {
        if (read(this.config) !== value) changed.abort()
      }
      const either = AbortSignal.any([signal, changed.signal])
      this.#listeners.add(look)
      try {
        await work(value, either)
        await aborted(either)
      } finally {
        this.#listeners.delete(look)
      }
    }
  }
}
