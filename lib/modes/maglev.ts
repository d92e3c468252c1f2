import { jenkinsHash, scale } from '../kernel/jenkins-hash.js'

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
