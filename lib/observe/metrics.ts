import { setImmediate as nextTurn } from 'node:timers/promises'
import { Slice } from '../async.js'
import { Counter, Gauge, Histogram, Registry, collectDefaultMetrics } from 'prom-client'
import type { Meter } from '../modes/mode.js'
import type { ModeName } from '../config/config.js'
import { fullName, type MetricSpec } from './metric-spec.js'
import { ownMetrics } from './metrics-own.js'
import { commonMetrics, componentMetrics, kernelModeMetrics } from './metrics-upstream.js'
import { ServiceSeries, type Labels, type Series } from './service-series.js'

/** Every metric, except those of the process itself (process_*, nodejs_*). */
export const metricTable: readonly MetricSpec[] = [
  ...commonMetrics,
  ...kernelModeMetrics,
  ...ownMetrics,
  ...componentMetrics,
]

type Metric = Counter | Gauge | Histogram

interface Found {
  readonly metric: Metric
  readonly labels: Labels
  /** Of a metric of Services. */
  readonly series?: Series
}

interface MetricsOptions {
  /** The mode that runs. Metrics of other modes are left out, as in kube-proxy. */
  readonly mode: ModeName
  /** Whether to add process_* and nodejs_*. */
  readonly process?: boolean
  /** How many series of services one metric may have. Further ones are summed as `other`. */
  readonly maxServiceSeries?: number
  /** Called with a name that is not in the table, so its number is lost. */
  readonly onUnknown?: (name: string) => void
}

/** One series of a counter or gauge. */
export interface ReadSeries {
  /** The name as in the tables, without the prefix. */
  readonly name: string
  readonly value: number
  readonly label: (name: string) => string
}

/** The numbers of /metrics, by the names in the table above, without the prefix. */
export class Metrics implements Meter {
  readonly #registry = new Registry()
  readonly #metrics = new Map<string, { readonly spec: MetricSpec; readonly metric: Metric }>()
  readonly #onUnknown: (name: string) => void
  readonly #series: ServiceSeries
  #beforePage: () => Promise<void> | undefined = () => undefined

  constructor(options: MetricsOptions) {
    this.#onUnknown = options.onUnknown ?? (() => undefined)
    this.#series = new ServiceSeries(options.maxServiceSeries ?? 10_000)
    for (const spec of metricTable) {
      // A metric of another mode exists, too, so that callers need not look at the mode.
      const shown = spec.modes?.includes(options.mode) ?? true
      const metric = this.#create(spec, shown ? [this.#registry] : [])
      this.#metrics.set(spec.name, { spec, metric })
    }
    if (options.process ?? true) {
      // The default of 10 ms would wake an idle process a hundred times a second.
      collectDefaultMetrics({ register: this.#registry, eventLoopMonitoringPrecision: 200 })
    }
  }

  count(name: string, labels: Labels, by = 1): void {
    const metric = this.#find(name, labels)
    if (metric?.metric instanceof Counter) metric.metric.inc(metric.labels, by)
  }

  gauge(name: string, labels: Labels, value: number): void {
    const found = this.#find(name, labels)
    if (!(found?.metric instanceof Gauge)) return
    const { metric, series } = found
    if (!series) metric.set(found.labels, value)
    else {
      metric.inc(series.shown, value - series.part)
      series.part = value
    }
  }

  observe(name: string, labels: Labels, value: number): void {
    const metric = this.#find(name, labels)
    if (metric?.metric instanceof Histogram) metric.metric.observe(metric.labels, value)
  }

  forget(labels: Labels): void {
    for (const { metric: name, labels: own, shown, part } of this.#series.take(labels)) {
      const metric = this.#metrics.get(name)?.metric
      if (shown === own) metric?.remove(own)
      else if (metric instanceof Gauge) metric.dec(shown, part)
    }
  }

  /** Runs `work` before each page and each series, for numbers that are read only then. */
  beforePage(work: () => Promise<void> | undefined): void {
    this.#beforePage = work
  }

  /** The page, and its content type. Each metric may have thousands of series. */
  async page(): Promise<{ readonly type: string; readonly body: string }> {
    await this.#beforePage()
    const parts: string[] = []
    const slice = new Slice()
    for (const { name } of this.#registry.getMetricsAsArray()) {
      if (slice.isOver) await slice.rest()
      parts.push(await this.#registry.getSingleMetricAsString(name))
    }
    return { type: this.#registry.contentType, body: `${parts.join('\n\n')}\n` }
  }

  /** All series of these counters and gauges. `beforePage` runs once for all of them. */
  async readSeries(names: readonly string[]): Promise<readonly ReadSeries[]> {
    await this.#beforePage()
    const all: ReadSeries[] = []
    for (const name of names) {
      const metric = this.#metrics.get(name)?.metric
      if (!metric || metric instanceof Histogram) continue
      for (const { labels, value } of (await metric.get()).values) {
        // Labels have many types in the library, and are texts on the page.
        all.push({ name, value, label: (label) => String(labels[label] ?? '') })
      }
      // Each may have thousands of series, and syncs need this thread, too.
      await nextTurn()
    }
    return all
  }

  #find(name: string, labels: Labels): Found | undefined {
    const known = this.#metrics.get(name)
    if (!known) {
      this.#onUnknown(name)
      return undefined
    }
    // prom-client throws on an unknown label, and a metric must never stop a sync.
    const chosen: Record<string, string> = {}
    for (const label of known.spec.labels) chosen[label] = labels[label] ?? ''
    const { metric, spec } = known
    if (!spec.labels.includes('service')) return { metric, labels: chosen }
    const series = this.#series.admit(name, chosen, spec.type === 'gauge')
    return { metric, labels: series.shown, series }
  }

  #create(spec: MetricSpec, registers: Registry[]): Metric {
    const shared = {
      name: fullName(spec),
      help: spec.help,
      labelNames: [...spec.labels],
      registers,
    }
    if (spec.type === 'counter') return new Counter(shared)
    if (spec.type === 'gauge') return new Gauge(shared)
    return new Histogram({ ...shared, ...(spec.buckets ? { buckets: [...spec.buckets] } : {}) })
  }
}
