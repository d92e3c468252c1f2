import { syncMeasured, type DaemonLine } from './timeline.js'
import type { EndpointFailure } from '../../state/endpoint-health.js'
import type { DesiredState } from '../../state/desired-state.js'
import type { Gauge } from './node-gauge.js'

interface FailingNowDeps {
  readonly gauge: Gauge
  /** What the kernel has. */
  readonly state: () => DesiredState | undefined
  readonly changed: () => void
}

/**
 * The endpoints that fail their health check. Only the daemon knows them. Each change of them
 * causes a sync, so the daemon is asked after its syncs.
 */
export class FailingNow {
  readonly #deps: FailingNowDeps
  #list: readonly EndpointFailure[] = []
  #asked = 0

  constructor(deps: FailingNowDeps) {
    this.#deps = deps
  }

  get list(): readonly EndpointFailure[] {
    return this.#list
  }

  daemonSaid({ message, family }: DaemonLine): void {
    if (message === 'Starting') this.#take(++this.#asked, [])
    if (message !== syncMeasured || family !== 'IPv4') return
    const services = [...(this.#deps.state()?.services.values() ?? [])]
    const isChecked = services.some(({ health }) => health !== undefined)
    if (isChecked || this.#list.length > 0) void this.#ask(++this.#asked)
  }

  async #ask(number: number): Promise<void> {
    const { failing } = await this.#deps.gauge.ask({ ask: 'failing' })
    if (failing) this.#take(number, failing)
  }

  #take(number: number, list: readonly EndpointFailure[]): void {
    // The answer to an older question is not used.
    if (number !== this.#asked || JSON.stringify(list) === JSON.stringify(this.#list)) return
    this.#list = list
    this.#deps.changed()
  }
}
