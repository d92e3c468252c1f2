import type { Log } from '../modes/mode.js'

/** The part of a service manager that is told something; see kernel/service-manager. */
export interface Notified {
  notify(text: string): string | undefined
  readonly watchdogMs: number | undefined
}

export interface ServiceNotesOptions {
  readonly manager: Notified
  readonly isHealthy: () => boolean
  readonly log: Log
  /** Resolves after `ms`, or at once when the signal comes; never rejects. */
  readonly sleep: (ms: number, signal: AbortSignal) => Promise<void>
}

/** Tells a service manager when the rules are in force, that the daemon lives, and that it leaves. */
export class ServiceNotes {
  readonly #options: ServiceNotesOptions
  #isReady = false

  constructor(options: ServiceNotesOptions) {
    this.#options = options
  }

  /** Every family has been synced; said once. */
  ready(status: string): void {
    if (this.#isReady) return
    this.#isReady = true
    this.#tell(`READY=1\nSTATUS=${status}`)
  }

  /** Feeds the watchdog while the daemon keeps up, until the signal; then says that it stops. */
  async run(signal: AbortSignal): Promise<void> {
    const { manager, isHealthy, sleep } = this.#options
    while (!signal.aborted) {
      // Silence is how a daemon that is stuck asks to be restarted.
      if (manager.watchdogMs !== undefined && isHealthy()) this.#tell('WATCHDOG=1')
      await sleep(manager.watchdogMs ?? 2 ** 31 - 1, signal)
    }
    this.#tell('STOPPING=1')
  }

  #tell(text: string): void {
    const failure = this.#options.manager.notify(text)
    if (failure !== undefined) this.#options.log.warn({ error: failure }, 'systemd was not told')
  }
}
