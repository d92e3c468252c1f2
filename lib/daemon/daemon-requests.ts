import type { Log, ModeContext } from '../modes/mode.js'
import type { Observation } from '../observe/observation.js'
import type { SyncLoop } from '../sync/loop.js'

interface DaemonRequestsOptions {
  readonly log: Log
  /** The part of the mode's context with which it reports its numbers and its connections. */
  readonly forMode: Pick<ModeContext, 'meter' | 'carried' | 'refused' | 'translated'>
  readonly loop: Pick<SyncLoop, 'request'>
  readonly observation: Pick<Observation, 'queued' | 'changedByOthers'>
}

/**
 * Requests of the sources and the mode to the daemon: for a sync, or to end. This object is made
 * before the mode, because the mode gets it, and the syncs need the mode.
 */
export class DaemonRequests {
  readonly #options: DaemonRequestsOptions
  readonly #ending = new AbortController()
  #isFullRequested = false
  #hasBegun = false
  /** The context that the mode gets. */
  readonly modeContext: ModeContext

  constructor(options: DaemonRequestsOptions) {
    this.#options = options
    const { log, forMode, observation } = options
    this.modeContext = {
      log,
      ...forMode,
      resync: (reason, { full }) => {
        log.info({ reason, full }, 'sync asked for by the mode')
        if (full) {
          observation.changedByOthers(reason)
          this.writeAnew()
        }
        // R01: the first request of others comes when all objects are known. Rules of an earlier
        // run stay until then, whatever is done to them.
        if (this.#hasBegun) this.sync()
      },
      stop: (reason) => {
        log.info({ reason }, 'the mode asks the daemon to end')
        this.#ending.abort()
      },
    }
  }

  /** Requests a sync, because something has changed. Called only when all objects are known. */
  sync(): void {
    this.#hasBegun = true
    const { log, observation, loop } = this.#options
    log.debug({}, 'change seen, sync asked for')
    observation.queued()
    loop.request()
  }

  /** Makes the next sync write everything. */
  writeAnew(): void {
    this.#isFullRequested = true
  }

  /** Whether writing everything has been requested since the last call. */
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
