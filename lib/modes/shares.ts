import type { Balance } from '../state/balance.js'
import type { Endpoint } from '../state/desired-state.js'
import { jenkinsHash, scale } from '../kernel/jenkins-hash.js'

/** The share of the connections that each endpoint gets: by its weight, or by Maglev hashing. */

type Weighted = Pick<Endpoint, 'weight'>

/** The weights to use: an endpoint of weight 0 gets nothing, unless all have it. */
export function usedWeights(endpoints: readonly Weighted[]): readonly number[] {
  const isAllZero = endpoints.every(({ weight }) => weight === 0)
  return endpoints.map(({ weight }) => (isAllZero ? 1 : weight))
}

/** The endpoints that a random choice may take, with the weights to use. */
export function drawable<T extends Weighted>(all: readonly T[]): readonly T[] {
  const withWeight = all.filter(({ weight }) => weight > 0)
  return withWeight.length > 0 ? withWeight : all.map((each) => ({ ...each, weight: 1 }))
}

/**
 * A list that has every endpoint as often as its weight says, for a random choice among the places.
 * Weights that need more than `mostPlaces` are rounded, but only weight 0 gets no place.
 */
export function weightedPlaces<T extends Weighted>(endpoints: readonly T[]): readonly T[] {
  const weights = usedWeights(endpoints)
  const divisor = weights.reduce(greatestDivisor, 0)
  const total = weights.reduce((sum, weight) => sum + weight, 0)
  const unit = Math.max(divisor, total / mostPlaces)
  return endpoints.flatMap((endpoint, index) => {
    const weight = weights[index] ?? 0
    const times = weight === 0 ? 0 : Math.max(1, Math.round(weight / unit))
    return Array.from({ length: times }, () => endpoint)
  })
}

/** The endpoint with the largest weight, or the first of several. It gets all connections. */
export function firstOf<T extends Weighted>(endpoints: readonly T[]): T | undefined {
  return endpoints.reduce<T | undefined>(
    (best, endpoint) => (best && best.weight >= endpoint.weight ? best : endpoint),
    undefined,
  )
}

/** Weights that say the same as the word: 0 gets nothing, and with `first` the largest gets all. */
export function weightsFor(
  word: Balance | undefined,
  endpoints: readonly Weighted[],
): readonly number[] {
  if (word === 'weighted') return usedWeights(endpoints)
  const first = word === 'first' ? firstOf(endpoints) : undefined
  return endpoints.map((each) => (each === first ? 2 : 1))
}

/**
 * How many places a table has: a prime number. It does not depend on the number of endpoints,
 * because another size would move nearly all clients. If one of 100 endpoints goes, 1.4 % of the
 * places of the others change.
 */
export const maglevPlaces = 16_381

/**
 * Gives each place of a table the index of an endpoint (Maglev hashing). The address of a client
 * decides its place. Every endpoint has its own order of the places. The endpoints take turns, and
 * each takes the next free place in its order. So all have the same share, and most places stay
 * when an endpoint goes.
 */
export function maglevTable(keys: readonly string[]): Uint16Array {
  const table = new Uint16Array(maglevPlaces)
  if (keys.length < 2) return table
  const text = new TextEncoder()
  const isTaken = new Uint8Array(maglevPlaces)
  const steps = keys.map((key) => {
    const bytes = text.encode(key)
    const next = scale(jenkinsHash(bytes, 1), maglevPlaces)
    return { next, skip: 1 + scale(jenkinsHash(bytes, 2), maglevPlaces - 1) }
  })
  for (let filled = 0; ;) {
    for (const [index, step] of steps.entries()) {
      while (isTaken[step.next]) step.next = (step.next + step.skip) % maglevPlaces
      isTaken[step.next] = 1
      table[step.next] = index
      if (++filled === maglevPlaces) return table
    }
  }
}

const mostPlaces = 1000

/** The number of rules up to which those of remembered clients are in one chain, as in kube-proxy. */
const rulesMost = 64

/**
 * Many endpoints in groups of at most about 64, by number; none if there are few. Each group is a
 * chain, so that a change of one endpoint writes few rules. A hash makes the groups, and not the
 * order, so that the others stay where they are.
 */
export function inGroups<T extends Pick<Endpoint, 'key'>>(
  endpoints: readonly T[],
): ReadonlyMap<number, readonly T[]> {
  const groups = new Map<number, T[]>()
  if (endpoints.length <= rulesMost) return groups
  const text = new TextEncoder()
  const count = powerOfFour(endpoints.length / rulesMost)
  for (const endpoint of endpoints) {
    const group = scale(jenkinsHash(text.encode(endpoint.key), 0), count)
    const known = groups.get(group)
    if (known) known.push(endpoint)
    else groups.set(group, [endpoint])
  }
  return groups
}

/** A size that is at least so large: a power of four, so that few sizes change with the number. */
export function powerOfFour(atLeast: number): number {
  let size = 4
  while (size < atLeast) size *= 4
  return size
}

function greatestDivisor(a: number, b: number): number {
  return b === 0 ? a : greatestDivisor(b, a % b)
}
