import { longestTimerMs, pause } from '../async.js'
import type { Log } from '../modes/mode.js'

/** The part of kernel/service-manager.ts that is used here. */
export interface ServiceManager {
  /** Returns why it failed, or undefined. */
  notify(text: string): string | undefined
  readonly watchdogMs: number | undefined
}

interface SystemdNotifierOptions {
  readonly manager: ServiceManager
  readonly isHealthy: () => boolean
  readonly log: Log
}

/** Tells systemd that the daemon is ready, that it is alive, and that it stops. */
export class SystemdNotifier {
  readonly #options: SystemdNotifierOptions
  #isReady = false

  constructor(options: SystemdNotifierOptions) {
    this.#options = options
  }

  /** Every family has been synced. Only the first call notifies. */
  ready(status: string): void {
    if (this.#isReady) return
    this.#isReady = true
    this.#notify(`READY=1\nSTATUS=${status}`)
  }

  /** Notifies the watchdog while the daemon is healthy, until the signal; then says that it stops. */
  async run(signal: AbortSignal): Promise<void> {
    const { manager, isHealthy } = this.#options
    while (!signal.aborted) {
      // Without notifications systemd restarts the daemon, which is right when it is stuck.
      if (manager.watchdogMs !== undefined && isHealthy()) this.#notify('WATCHDOG=1')
      await pause(manager.watchdogMs ?? longestTimerMs, signal)
    }
    this.#notify('STOPPING=1')
  }

  #notify(text: string): void {
    const failure = this.#options.manager.notify(text)
    if (failure !== undefined) {
      this.#options.log.warn({ error: failure }, 'systemd could not be notified')
    }
  }
}
