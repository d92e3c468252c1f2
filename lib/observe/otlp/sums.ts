import type { ReadSeries } from '../metrics.js'
import { exported, type Point } from './form.js'

interface Known {
  readonly since: number
  /** The value at that time. */
  readonly base: number
  readonly last: number
}

/**
 * Adds up the numbers of endpoints to sums of Services. A sum that grows is counted from the first
 * reading of this process on: numbers kept from the process before would be counted twice.
 */
export class Sums {
  #known: ReadonlyMap<string, Known> | undefined
  #lastAt = 0

  points(series: readonly ReadSeries[], at: number): readonly Point[] {
    const sums = summed(series)
    const before = this.#known
    const known = new Map<string, Known>()
    const points = [...sums].map(([key, { metric, labels, value }]): Point => {
      const since = this.#sinceOf(before, { key, metric, value, at })
      known.set(key, { ...since, last: value })
      return { metric, labels, at, since: since.since, value: value - since.base }
    })
    this.#known = known
    this.#lastAt = at
    return points
  }

  #sinceOf(before: ReadonlyMap<string, Known> | undefined, now: Reading): Omit<Known, 'last'> {
    const { key, metric, value, at } = now
    const grows = exported[metric]?.grows === true
    if (!before) return { since: at, base: grows ? value : 0 }
    const known = before.get(key)
    // A sum that was missing at the last reading, or has begun anew since, was 0 then.
    return known && (known.last <= value || !grows) ? known : { since: this.#lastAt, base: 0 }
  }
}

interface Reading {
  readonly key: string
  readonly metric: number
  readonly value: number
  readonly at: number
}

/** The labels of a sum, without the endpoint. Not every metric has all of them. */
const pointLabels = ['service', 'protocol', 'direction'] as const

function labelsOf(texts: readonly string[]): Point['labels'] {
  const pairs = pointLabels.map((label, index) => [label, texts[index] ?? ''] as const)
  return Object.fromEntries(pairs.filter(([, text]) => text !== ''))
}

interface Sum extends Pick<Point, 'metric' | 'labels'> {
  value: number
}

function summed(series: readonly ReadSeries[]): ReadonlyMap<string, Sum> {
  const sums = new Map<string, Sum>()
  for (const { name, label, value } of series) {
    const metric = exported.findIndex(({ own }) => own === name)
    const texts = pointLabels.map(label)
    const key = `${metric} ${texts.join(' ')}`
    const known = sums.get(key)
    if (known) known.value += value
    else sums.set(key, { metric, labels: labelsOf(texts), value })
  }
  return sums
}
