import type { Log } from './mode.js'

/** Forgotten together beyond that, to bound the memory. */
const mostTexts = 100

/**
 * What goes wrong with work that is tried again and again. Each complaint is a warning once, until
 * the work has succeeded.
 */
export class Complaints {
  readonly #log: Log
  readonly #said = new Set<string>()

  constructor(log: Log) {
    this.#log = log
  }

  warn(fields: object, message: string): void {
    const text = JSON.stringify([message, fields])
    if (this.#said.has(text)) {
      this.#log.debug(fields, message)
      return
    }
    if (this.#said.size >= mostTexts) this.#said.clear()
    this.#said.add(text)
    this.#log.warn(fields, message)
  }

  /** The work has succeeded: if it fails again, that is news. */
  settled(): void {
    this.#said.clear()
  }

  /** For work that writes its own warnings. */
  get log(): Log {
    const log = this.#log
    return {
      debug: (fields, message) => log.debug(fields, message),
      info: (fields, message) => log.info(fields, message),
      warn: (fields, message) => this.warn(fields, message),
      error: (fields, message) => log.error(fields, message),
    }
  }
}
