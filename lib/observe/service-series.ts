export type Labels = Readonly<Record<string, string>>

export interface Series {
  readonly metric: string
  readonly labels: Labels
}

/**
 * Which series of services there are: so that those of a service port that left are dropped
 * without looking at all others, and so that a huge cluster cannot fill the memory with numbers.
 */
export class ServiceSeries {
  readonly #limit: number
  readonly #byService = new Map<string, Map<string, Series>>()
  readonly #counts = new Map<string, number>()

  /** `limit`: how many series one metric may have. */
  constructor(limit: number) {
    this.#limit = limit
  }

  /**
   * The labels to count under: those given or, where the limit is reached, `other` for service and
   * endpoint, so that sums stay right.
   */
  admit(metric: string, labels: Labels): Labels {
    const { service = '' } = labels
    const key = `${metric} ${Object.values(labels).join(' ')}`
    const known = this.#byService.get(service)?.get(key)
    if (known) return known.labels
    const count = this.#counts.get(metric) ?? 0
    if (count >= this.#limit) return summed(labels)
    const present = this.#byService.get(service) ?? new Map<string, Series>()
    present.set(key, { metric, labels })
    this.#byService.set(service, present)
    this.#counts.set(metric, count + 1)
    return labels
  }

  /** Takes out the series that carry all of these labels, one of which names the service. */
  take(labels: Labels): readonly Series[] {
    const { service = '' } = labels
    const present = this.#byService.get(service)
    const wanted = Object.entries(labels)
    const taken: Series[] = []
    for (const [key, series] of present ?? []) {
      if (!wanted.every(([label, value]) => series.labels[label] === value)) continue
      present?.delete(key)
      taken.push(series)
      this.#counts.set(series.metric, (this.#counts.get(series.metric) ?? 1) - 1)
    }
    if (present?.size === 0) this.#byService.delete(service)
    return taken
  }
}

function summed(labels: Labels): Labels {
  const rest = { service: 'other', ...('endpoint' in labels ? { endpoint: 'other' } : {}) }
  return { ...labels, ...rest }
}
