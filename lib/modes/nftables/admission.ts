import type { Log } from '../mode.js'

/** Each connection takes two descriptors; the process needs others for the API and for its rules. */
export const connectionsMax = 1000
const pauseMs = 1000
const reportEveryMs = 10_000
const exhaustion: ReadonlySet<string | undefined> = new Set([
  'EMFILE',
  'ENFILE',
  'ENOBUFS',
  'ENOMEM',
])

export interface AdmissionDeps {
  readonly log: Log
  readonly now: () => number
  readonly limit?: number
}

/**
 * Says which connections may be served: not more than a limit at once, and for a while none after
 * the system had no descriptor or no memory left. Whoever is refused learns it at once.
 */
export class Admission {
  readonly #deps: AdmissionDeps
  #open = 0
  #refused = 0
  #pausedUntil = -Infinity
  #reportedAt = -Infinity

  constructor(deps: AdmissionDeps) {
    this.#deps = deps
  }

  /** Whoever was let in has to leave. */
  tryEnter(): boolean {
    const { now, limit = connectionsMax } = this.#deps
    if (this.#open < limit && now() >= this.#pausedUntil) {
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

  /** Whether the error means that the system ran out of something; then nobody enters for a while. */
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
