import type { ReadSeries } from '../metrics.js'
import { exported, type Point } from './form.js'

interface Sum extends Pick<Point, 'metric' | 'labels' | 'since'> {
  value: number
}

/**
 * Adds up the numbers of endpoints to sums of Services. A sum that grows is counted from the first
 * reading of this process on: numbers kept from the process before would be counted twice. It gets
 * what its series have grown by, so it does not fall when an endpoint is forgotten.
 */
export class Sums {
  #sums: ReadonlyMap<string, Sum> = new Map()
  /** The last value of each series; undefined before the first reading. */
  #values: ReadonlyMap<string, number> | undefined
  #lastAt = 0

  points(series: readonly ReadSeries[], at: number): readonly Point[] {
    const sums = new Map<string, Sum>()
    const values = new Map<string, number>()
    for (const { name, label, value } of series) {
      const metric = exported.findIndex(({ own }) => own === name)
      const grows = exported[metric]?.grows === true
      const texts = pointLabels.map(label)
      const key = `${metric} ${texts.join(' ')}`
      const known = this.#sums.get(key)
      const sum = sums.get(key) ?? {
        ...{ metric, labels: labelsOf(texts) },
        // A sum that was missing at the last reading was 0 then.
        since: known?.since ?? (this.#values ? this.#lastAt : at),
        value: grows ? (known?.value ?? 0) : 0,
      }
      sums.set(key, sum)
      const ofSeries = `${key} ${label('endpoint')}`
      sum.value += grows ? this.#growth(ofSeries, value) : value
      if (grows) values.set(ofSeries, value)
    }
    this.#sums = sums
    this.#values = values
    this.#lastAt = at
    return [...sums.values()].map((sum) => ({ ...sum, at }))
  }

  #growth(ofSeries: string, value: number): number {
    if (!this.#values) return 0
    const before = this.#values.get(ofSeries) ?? 0
    // A series that has been forgotten begins anew at 0.
    return value < before ? value : value - before
  }
}

/** The labels of a sum, without the endpoint. Not every metric has all of them. */
const pointLabels = ['service', 'protocol', 'direction'] as const

function labelsOf(texts: readonly string[]): Point['labels'] {
  const pairs = pointLabels.map((label, index) => [label, texts[index] ?? ''] as const)
  return Object.fromEntries(pairs.filter(([, text]) => text !== ''))
}
