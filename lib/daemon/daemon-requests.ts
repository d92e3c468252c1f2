import type { Log, ModeContext } from '../modes/mode.js'
import type { Observation } from '../observe/observation.js'
import type { SyncLoop } from '../sync/loop.js'

interface DaemonRequestsOptions {
  readonly log: Log
  /** The part of the mode's context with which it reports its numbers and its connections. */
  readonly forMode: Pick<ModeContext, 'meter' | 'carried' | 'refused' | 'translated'>
  readonly loop: Pick<SyncLoop, 'request'>
  readonly observation: Pick<Observation, 'queued' | 'changedByOthers'>
  readonly now: () => number
}

/** So many repairs within ten minutes are a dispute with another program. */
const repairsOfDispute = 10
const disputeMs = 600_000
/** The least time between two repairs in a dispute. A change of objects does not wait for it. */
const disputedRepairMs = 10_000

const disputeText =
  'another program changes the rules of this proxy again and again, so they are repaired every 10 s at most; look for a second kube-proxy on this node and stop one of the two'

/**
 * Requests of the sources and the mode to the daemon: for a sync, or to end. This object is made
 * before the mode, because the mode gets it, and the syncs need the mode.
 */
export class DaemonRequests {
  readonly #options: DaemonRequestsOptions
  readonly #ending = new AbortController()
  #isFullRequested = false
  #hasBegun = false
  /** When the newest repairs were, or are due. */
  #repairs: readonly number[] = []
  /** When the log last told of the dispute that lasts; undefined: there is none. */
  #disputeToldAt: number | undefined
  #repair: NodeJS.Timeout | undefined
  /** The context that the mode gets. */
  readonly modeContext: ModeContext

  constructor(options: DaemonRequestsOptions) {
    this.#options = options
    const { log, forMode, observation } = options
    this.modeContext = {
      log,
      ...forMode,
      resync: (reason, { byOthers }) => {
        if (byOthers) observation.changedByOthers(reason)
        // Another part of the same change, or one more change until the repair.
        if (byOthers && this.#isFullRequested) return
        const waitMs = byOthers ? this.#waitOfRepair(reason) : 0
        const isTold = byOthers && this.#disputeToldAt !== undefined
        const text = byOthers ? 'rules were changed' : 'everything is written anew'
        log[isTold ? 'debug' : 'warn']({ reason }, text)
        this.writeAnew()
        // R01: the first request of others comes when all objects are known. Rules of an earlier
        // run stay until then, whatever is done to them.
        if (!this.#hasBegun) return
        if (waitMs === 0) this.sync()
        else this.#repair = setTimeout(() => this.sync(), waitMs)
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
    if (isFull) {
      // A sync for another reason is the repair, too. The next one waits from now on.
      clearTimeout(this.#repair)
      const now = this.#options.now()
      this.#repairs = this.#repairs.map((due) => Math.min(due, now))
    }
    return isFull
  }

  /** Otherwise two programs that undo each other's changes would write all the time. */
  #waitOfRepair(reason: string): number {
    const { log, now } = this.#options
    const at = now()
    const [first = -Infinity] = this.#repairs
    const isDispute = this.#repairs.length === repairsOfDispute && at - first < disputeMs
    const due = isDispute ? Math.max(at, (this.#repairs.at(-1) ?? at) + disputedRepairMs) : at
    this.#repairs = [...this.#repairs, due].slice(-repairsOfDispute)
    if (!isDispute) this.#disputeToldAt = undefined
    else if (at - (this.#disputeToldAt ?? -Infinity) >= disputeMs) {
      log.warn({ reason }, disputeText)
      this.#disputeToldAt = at
    }
    return due - at
  }

  /** Aborted when the mode asks the daemon to end. */
  get ending(): AbortSignal {
    return this.#ending.signal
  }
}
