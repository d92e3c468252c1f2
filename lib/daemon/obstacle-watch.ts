import { pause } from '../async.js'
import { fullTable, notForwarding } from '../kernel/obstacles.js'
import { Sysctls } from '../kernel/sysctl.js'
import { ipFamilies } from '../state/ip.js'
import { isProxyMode, type ModeName } from '../config/config.js'
import type { DesiredState } from '../state/desired-state.js'
import type { Log } from '../modes/mode.js'
import type { StateUpdate } from '../state/tracker.js'
import type { SyncListener } from '../sync/sync-round.js'

/** Each look reads a few files of /proc. */
const lookEveryMs = 5_000
/** The table counts as full until this much of it is free, so that the log has no line each look. */
const roomyShare = 0.9

interface ObstacleOptions {
  readonly mode: ModeName
  readonly log: Log
  /** Takes all that is in the way now, after each change. */
  readonly changed: (texts: readonly string[]) => void
  readonly sysctls?: Sysctls
}

/** Something that may be in the way. */
interface Kind {
  /** What is in the way now; `isTold` if it already was at the last look. */
  readonly look: (isTold: boolean) => readonly string[]
  readonly over: string
}

/**
 * Tells what stops connections on this node although every rule is right: once when it begins, and
 * once when it is over.
 */
export class ObstacleWatch implements SyncListener {
  readonly #log: Log
  readonly #changed: ObstacleOptions['changed']
  readonly #kinds: readonly Kind[]
  readonly #told = new Map<Kind, string>()
  #states: readonly DesiredState[] = []

  constructor({ mode, log, changed, sysctls = new Sysctls() }: ObstacleOptions) {
    this.#log = log
    this.#changed = changed
    const table: Kind = {
      look: (isTold) => fullTable(sysctls, isTold ? roomyShare : undefined),
      over: 'the connection table has room again',
    }
    const forwarding = ipFamilies.map((family) => ({
      look: () => {
        const found = notForwarding(family, { sysctls })
        return found.length > 0 && this.#states.some(forwards(family)) ? found : []
      },
      over: `this node passes ${family} packets of others on again`,
    }))
    // A proxy that carries the connections itself needs no forwarding.
    this.#kinds = [table, ...(isProxyMode(mode) ? [] : forwarding)]
  }

  started({ states }: StateUpdate): void {
    this.#states = states
  }

  async run(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      this.look()
      await pause(lookEveryMs, signal)
    }
  }

  look(): void {
    const before = [...this.#told.values()].join()
    for (const kind of this.#kinds) {
      const isTold = this.#told.has(kind)
      const [text] = kind.look(isTold)
      if (text !== undefined && !isTold) {
        this.#told.set(kind, text)
        this.#log.warn({}, text)
      } else if (text === undefined && this.#told.delete(kind)) {
        this.#log.info({}, kind.over)
      }
    }
    const texts = [...this.#told.values()]
    if (texts.join() !== before) this.#changed(texts)
  }
}

/** Whether packets of others go through this node: one endpoint of the family is not its own. */
function forwards(family: DesiredState['family']) {
  return (state: DesiredState): boolean => {
    if (state.family !== family) return false
    const here = new Set(state.node.localAddresses)
    for (const { reachableEndpoints } of state.services.values()) {
      if (reachableEndpoints.some(({ ip }) => !here.has(ip))) return true
    }
    return false
  }
}
