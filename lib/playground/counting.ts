import { countersOf, noCounters, type Counted } from './counters.js'
import type { CountersView } from './view.js'
import type { NodeGauge } from './node-gauge.js'

/** Reading takes a process in some modes; nobody reads numbers faster than this. */
const pauseMs = 400

/** Keeps what was counted on the node about as new as what is shown beside it. */
export class Counting {
  readonly #gauge: NodeGauge
  readonly #changed: () => void
  #view: CountersView = noCounters
  #wanted: Counted | undefined
  #reading: Promise<void> | undefined

  constructor(gauge: NodeGauge, changed: () => void) {
    this.#gauge = gauge
    this.#changed = changed
  }

  get view(): CountersView {
    return this.#view
  }

  /** Something has moved: read soon. Many calls make one reading. */
  refresh(counted: Counted): void {
    this.#wanted = counted
    this.#reading ??= this.#read().finally(() => (this.#reading = undefined))
  }

  async settled(): Promise<void> {
    this.#wanted = undefined
    await this.#reading
  }

  async #read(): Promise<void> {
    while (this.#wanted) {
      const wanted = this.#wanted
      this.#wanted = undefined
      const raw = await this.#gauge.ask({ ask: 'count', mode: wanted.mode })
      const next = countersOf(wanted, raw)
      if (JSON.stringify(next) !== JSON.stringify(this.#view)) {
        this.#view = next
        this.#changed()
      }
      await new Promise((resolve) => setTimeout(resolve, pauseMs))
    }
  }
}
