export type Labels = Readonly<Record<string, string>>

interface Series {
  readonly metric: string
  readonly labels: Labels
}

/**
 * Knows the series of each Service. Those of a removed service port, or of an endpoint that left, are
 * found without a search through all. Their number is limited, which bounds the memory in a huge
 * cluster.
 */
export class ServiceSeries {
  readonly #limit: number
  /** By service port, and there by endpoint, or '' for series without one. */
  readonly #byService = new Map<string, Map<string, Map<string, Series>>>()
  readonly #counts = new Map<string, number>()

  /** `limit`: how many series one metric may have. */
  constructor(limit: number) {
    this.#limit = limit
  }

  /**
   * The labels to count under: those given, or `other` for service and endpoint once the limit is
   * reached. Sums over all series stay correct.
   */
  admit(metric: string, labels: Labels): Labels {
    const { service = '', endpoint = '' } = labels
    const key = `${metric} ${Object.values(labels).join(' ')}`
    const known = this.#byService.get(service)?.get(endpoint)?.get(key)
    if (known) return known.labels
    const count = this.#counts.get(metric) ?? 0
    if (count >= this.#limit) return summed(labels)
    const byEndpoint = this.#byService.get(service) ?? new Map<string, Map<string, Series>>()
    const present = byEndpoint.get(endpoint) ?? new Map<string, Series>()
    present.set(key, { metric, labels })
    this.#byService.set(service, byEndpoint.set(endpoint, present))
    this.#counts.set(metric, count + 1)
    return labels
  }

  /** Removes and returns the series with all of these labels; one label names the service. */
  take(labels: Labels): readonly Series[] {
    const { service = '', endpoint } = labels
    const byEndpoint = this.#byService.get(service)
    const wanted = Object.entries(labels)
    const taken: Series[] = []
    for (const name of endpoint === undefined ? [...(byEndpoint?.keys() ?? [])] : [endpoint]) {
      const present = byEndpoint?.get(name)
      for (const [key, series] of present ?? []) {
        if (!wanted.every(([label, value]) => series.labels[label] === value)) continue
        present?.delete(key)
        taken.push(series)
        this.#counts.set(series.metric, (this.#counts.get(series.metric) ?? 1) - 1)
      }
      if (present?.size === 0) byEndpoint?.delete(name)
    }
    if (byEndpoint?.size === 0) this.#byService.delete(service)
    return taken
  }
}

function summed(labels: Labels): Labels {
  const rest = { service: 'other', ...('endpoint' in labels ? { endpoint: 'other' } : {}) }
  return { ...labels, ...rest }
}
