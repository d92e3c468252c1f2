import { clientLimit } from '../../kernel/this-process.js'
import type { Log } from '../mode.js'

/** The usual limit. It is lower if few files may be open: a connection takes two descriptors. */
const connectionsMax = 1000
const pauseMs = 1000
const reportEveryMs = 10_000
const exhaustion: ReadonlySet<string | undefined> = new Set([
  'EMFILE',
  'ENFILE',
  'ENOBUFS',
  'ENOMEM',
])

interface AdmissionDeps {
  readonly log: Log
  readonly now: () => number
  readonly limit?: number
}

/**
 * Says which connections may be served. There is a limit. After the system had no descriptor or no
 * memory left, nobody is admitted for a while. A client that is refused gets a reset at once.
 */
export class Admission {
  readonly #deps: AdmissionDeps
  readonly #limit: number
  #open = 0
  #refused = 0
  #pausedUntil = -Infinity
  #reportedAt = -Infinity

  constructor(deps: AdmissionDeps) {
    this.#deps = deps
    this.#limit = deps.limit ?? clientLimit(connectionsMax)
  }

  /** Admits a connection. The caller has to call `leave` at its end. */
  tryEnter(): boolean {
    if (this.#open < this.#limit && this.#deps.now() >= this.#pausedUntil) {
      this.#open++
      return true
    }
    this.#refused++
    this.#report()
    return false
  }

  leave(): void {
    this.#open--
  }

  /** Tells whether the system ran out of something; then nobody is admitted for a while. */
  noteExhaustion({ code }: NodeJS.ErrnoException): boolean {
    if (!exhaustion.has(code)) return false
    this.#pausedUntil = this.#deps.now() + pauseMs
    return true
  }

  #report(): void {
    const { log, now } = this.#deps
    if (now() - this.#reportedAt < reportEveryMs) return
    this.#reportedAt = now()
    const counts = { refused: this.#refused, open: this.#open }
    log.warn(
      counts,
      'connections to node ports on localhost are refused: too many, or no descriptors',
    )
    this.#refused = 0
  }
}
