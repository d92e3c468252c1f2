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

  /** Values of the file that take effect only after a restart. */
  get waiting(): readonly ConfigChange[] {
    return this.#waiting
  }

  /** Why the newest content of the file is not used; undefined when it is. */
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

  /** Runs `work` with a value of the configuration until the signal, and anew when it changes. */
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
