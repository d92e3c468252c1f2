import { aborted, pause } from '../../async.js'
import { messageOf } from '../../errors.js'
import { recordOf } from '../flows/answer.js'
import type { FlowLog } from '../flows/flow-log.js'
import type { Metrics } from '../metrics.js'
import type { Log } from '../../modes/mode.js'
import { Delivery } from './delivery.js'
import { exported, logsOf, metricsOf, type Sender } from './form.js'
import { Sums } from './sums.js'

export interface ExporterOptions {
  /** The setting `flows.otlp.endpoint`. */
  readonly endpoint: string
  readonly sender: Sender
  /** The lines wait here until they are sent. The oldest are forgotten when there are too many. */
  readonly lines: FlowLog
  readonly metrics: Pick<Metrics, 'count' | 'readSeries'>
  readonly log: Log
  readonly pace?: Partial<typeof usualPace>
}

const usualPace = {
  /** In this time 200 lines a second make two batches. */
  linesEveryMs: 5_000,
  numbersEveryMs: 30_000,
  timeoutMs: 10_000,
  random: Math.random,
}
/** So many lines have some 300 KB. */
const mostInBatch = 512
/** How long the last lines may take when the proxy ends. */
const lastMs = 2_000

/**
 * Sends the stream of connections and the numbers of Services to an OpenTelemetry collector.
 * Nothing else waits for it. It reads lines that are kept anyway, and counts those that were
 * forgotten meanwhile as lost.
 */
export class Exporter {
  readonly #options: ExporterOptions
  readonly #pace: typeof usualPace
  readonly #lines: Delivery
  readonly #numbers: Delivery
  readonly #sums = new Sums()
  /** The number of the line that was sent last. */
  #sent: number

  constructor(options: ExporterOptions) {
    const { endpoint, metrics: meter, log, pace } = options
    this.#options = options
    this.#sent = options.lines.before
    this.#pace = { ...usualPace, ...pace }
    const { timeoutMs, random } = this.#pace
    const to = { endpoint, meter, log, timeoutMs, random }
    this.#lines = new Delivery({ ...to, signal: 'logs' })
    this.#numbers = new Delivery({ ...to, signal: 'metrics' })
  }

  /**
   * Runs until the signal. Numbers follow after `isCounting`, once those of the last process are
   * known.
   */
  async run(isCounting: Promise<void>, stop: AbortSignal): Promise<void> {
    await Promise.all([
      this.#repeat(() => this.#sendLines(stop), stop),
      Promise.race([isCounting, aborted(stop)]).then(() =>
        this.#repeat(() => this.#sendNumbers(stop), stop),
      ),
    ])
  }

  /** Sends the lines that are left, once. */
  async end(): Promise<void> {
    await this.#sendLines(AbortSignal.timeout(lastMs))
  }

  async #repeat(send: () => Promise<number>, stop: AbortSignal): Promise<void> {
    while (!stop.aborted) {
      const waitMs = await send().catch((error: unknown) => {
        this.#options.log.debug({ error: messageOf(error) }, 'could not read the numbers to export')
        return this.#pace.numbersEveryMs
      })
      await pause(waitMs, stop)
    }
  }

  /** Returns how long to wait before the next batch. */
  async #sendLines(stop: AbortSignal): Promise<number> {
    const { lines, sender } = this.#options
    for (;;) {
      const waiting = lines.find({}, this.#sent, Infinity).lines
      const batch = waiting.slice(0, mostInBatch)
      const [first, last] = [batch[0], batch.at(-1)]
      if (!first || !last) return this.#pace.linesEveryMs
      this.#lost(first.number - this.#sent - 1)
      this.#sent = first.number - 1
      const body = logsOf(sender, batch.map(recordOf), Date.now())
      const outcome = await this.#lines.send(body, stop)
      if (outcome.kind === 'failed') return outcome.waitMs
      this.#sent = last.number
      this.#lost(outcome.kind === 'refused' ? batch.length : outcome.rejected)
      if (waiting.length <= mostInBatch) return this.#pace.linesEveryMs
    }
  }

  async #sendNumbers(stop: AbortSignal): Promise<number> {
    const { metrics, sender } = this.#options
    const series = await metrics.readSeries(exported.map(({ own }) => own))
    const points = this.#sums.points(series, Date.now())
    for (let at = 0; at < points.length && !stop.aborted; at += mostInBatch) {
      const batch = metricsOf(sender, points.slice(at, at + mostInBatch))
      const outcome = await this.#numbers.send(batch, stop)
      // Nothing is lost, because the next reading has all sums again.
      if (outcome.kind === 'failed') return outcome.waitMs
    }
    return this.#pace.numbersEveryMs
  }

  #lost(count: number): void {
    if (count > 0) this.#options.metrics.count('flow_export_lines_lost_total', {}, count)
  }
}
