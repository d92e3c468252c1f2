export type Labels = Readonly<Record<string, string>>

export interface Series {
  readonly metric: string
  readonly labels: Labels
  /** Those on the page: its own, or those of the sum that it is in. */
  readonly shown: Labels
  /** Of a gauge: what it has added to the number on the page. */
  part: number
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
   * The series to count under: with the labels given, or with `other` for service and endpoint once
   * the limit is reached. Sums over all series stay correct. `isLevel`: the number may fall, so its
   * part of the sum is remembered.
   */
  admit(metric: string, labels: Labels, isLevel: boolean): Series {
    const { service = '', endpoint = '' } = labels
    const key = `${metric} ${Object.values(labels).join(' ')}`
    const known = this.#byService.get(service)?.get(endpoint)?.get(key)
    if (known) return known
    const count = this.#counts.get(metric) ?? 0
    const isOver = count >= this.#limit
    const series = { metric, labels, shown: isOver ? summed(labels) : labels, part: 0 }
    if (isOver && !isLevel) return series
    const byEndpoint = this.#byService.get(service) ?? new Map<string, Map<string, Series>>()
    const present = byEndpoint.get(endpoint) ?? new Map<string, Series>()
    present.set(key, series)
    this.#byService.set(service, byEndpoint.set(endpoint, present))
    if (!isOver) this.#counts.set(metric, count + 1)
    return series
  }

  /**
   * Removes and returns the series with all of these labels, which have a service, and perhaps an
   * endpoint.
   */
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
        if (series.shown !== series.labels) continue
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
