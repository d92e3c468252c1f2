import { Turns } from '../../async.js'
import { ConfigError, KernelError, messageOf } from '../../errors.js'
import { daemonPatienceMs, untilTrue } from './until-true.js'
import type { ModeName } from '../../config/config.js'
import type { LiveCluster } from './test-bed.js'

/** The modes that a playground shows, in historical order. */
export const allModes = ['userspace', 'iptables', 'ipvs', 'nftables', 'ebpf'] as const

interface SwitchListener {
  readonly changed: () => void
  /** A line of the daemon's log. */
  readonly said: (line: string) => void
  /** The daemon of this mode was started and may not be ready yet. */
  readonly started: (mode: ModeName) => void
  /** Called again and again when the daemon is ready, until the page shows its first state. */
  readonly isShown: () => boolean
}

/** Which daemon runs in the cluster, one at a time. */
export class ModeSwitch {
  readonly #cluster: LiveCluster
  readonly #modes: readonly [ModeName, ...ModeName[]]
  readonly #listener: SwitchListener
  #mode: ModeName
  /** Nothing else may begin before the first daemon runs. */
  #busy = 'starting'
  #isSwitching = false
  readonly #turns = new Turns()
  /** The ipvs scheduler of the next daemon. */
  scheduler = 'rr'

  constructor(
    cluster: LiveCluster,
    modes: readonly [ModeName, ...ModeName[]],
    listener: SwitchListener,
  ) {
    this.#cluster = cluster
    this.#modes = modes
    this.#listener = listener
    this.#mode = modes[0]
  }

  get mode(): ModeName {
    return this.#mode
  }

  /** What is under way; empty when nothing is. */
  get busy(): string {
    return this.#busy
  }

  get view() {
    return { mode: this.#mode, modes: this.#modes, scheduler: this.scheduler, busy: this.#busy }
  }

  /** Resolves once the daemon of this mode has said that it is ready. */
  async use(name: string, signal: AbortSignal): Promise<void> {
    const mode = this.#modes.find((each) => each === name)
    if (!mode) throw new ConfigError(`use mode ${name}: it cannot run here`)
    if (this.#isSwitching) throw new ConfigError(`use mode ${mode}: wait, ${this.#busy}`)
    this.#isSwitching = true
    this.#busy = `switching to ${mode}`
    this.#listener.changed()
    await this.#turns.take(() => this.#become(mode, signal))
  }

  /** Resolves when no change of mode is under way: between two daemons there are no rules. */
  settled(): Promise<void> {
    return this.#turns.idle()
  }

  async #become(mode: ModeName, signal: AbortSignal): Promise<void> {
    try {
      const { scheduler } = this
      await this.#cluster.useMode(mode, { scheduler, onLine: this.#listener.said })
      this.#mode = mode
      this.#listener.started(mode)
      await this.#untilReady(signal)
    } catch (error) {
      throw new KernelError('failed', `use mode ${mode}: ${messageOf(error)}`, { cause: error })
    } finally {
      this.#isSwitching = false
      this.#busy = ''
    }
  }

  /** Asks the daemon itself: rules of the last mode may still answer requests. */
  async #untilReady(signal: AbortSignal): Promise<void> {
    const isShown = async () => {
      const { isReady = false } = await this.#cluster.testBed.gauge.ask({ ask: 'ready' })
      return isReady && this.#listener.isShown()
    }
    if (!(await untilTrue(isShown, signal, daemonPatienceMs)))
      throw new KernelError('failed', 'start the daemon: it did not get ready')
  }
}
