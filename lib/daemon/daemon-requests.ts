import type { Log, Meter, ModeContext } from '../modes/mode.js'
import type { SyncLoop } from '../sync/loop.js'

export interface DaemonRequestsOptions {
  readonly log: Log
  readonly meter: Meter
  readonly loop: Pick<SyncLoop, 'request'>
  /** A sync was requested. */
  readonly queued: () => void
}

/**
 * What the sources and the mode ask of the daemon: a sync, or to end. It exists before the mode,
 * because the mode gets it, and the syncs need the mode.
 */
export class DaemonRequests {
  readonly #options: DaemonRequestsOptions
  readonly #ending = new AbortController()
  #isFullRequested = false
  /** What the mode gets. */
  readonly modeContext: ModeContext

  constructor(options: DaemonRequestsOptions) {
    this.#options = options
    const { log, meter } = options
    this.modeContext = {
      log,
      meter,
      resync: (reason, { full }) => {
        log.info({ reason, full }, 'sync asked for by the mode')
        this.#isFullRequested ||= full
        this.sync()
      },
      stop: (reason) => {
        log.info({ reason }, 'the mode asks the daemon to end')
        this.#ending.abort()
      },
    }
  }

  /** Requests a sync, because something has changed. */
  sync(): void {
    const { log, queued, loop } = this.#options
    log.debug({}, 'change seen, sync asked for')
    queued()
    loop.request()
  }

  /** Whether the mode has requested to write everything since the last call. */
  takeFull(): boolean {
    const isFull = this.#isFullRequested
    this.#isFullRequested = false
    return isFull
  }

  /** Aborted when the mode asks the daemon to end. */
  get ending(): AbortSignal {
    return this.#ending.signal
  }
}
