import type { Log } from './mode.js'

/** The most texts to remember. One more makes all of them forgotten, which bounds the memory. */
const mostTexts = 100

/**
 * Logs what goes wrong with work that is repeated until it succeeds. The first of several equal
 * warnings is logged as a warning, the others as debug messages.
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

  /** The work has succeeded. If it fails again, that is a warning again. */
  settled(): void {
    this.#said.clear()
  }

  /** A log for work that writes its own warnings. */
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
