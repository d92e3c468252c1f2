import { sourceBucket } from '../../kernel/jenkins-hash.js'
import { drawable, firstOf, maglevPlaces, maglevTable } from '../../modes/shares.js'
import type { Balance } from '../../state/balance.js'

interface Choosable {
  readonly key: string
  readonly weight: number
}

/** How likely the next connection of a client goes to an endpoint, and why. */
interface Chance<T> {
  readonly endpoint: T
  readonly probability: number
  readonly why: string
}

export const oneOf = (count: number) => (count === 1 ? 'the only one' : `one of ${count}`)

/** The endpoints that may get the next connection; they are in the order of their keys. */
export function chancesOf<T extends Choosable>(
  endpoints: readonly T[],
  word: Balance,
  client: string,
): readonly Chance<T>[] {
  const count = endpoints.length
  const only = (endpoint: T | undefined, why: string) =>
    endpoint ? [{ endpoint, probability: 1, why }] : []
  const equal = (why: string) =>
    endpoints.map((endpoint) => ({ endpoint, probability: 1 / count, why }))
  switch (word) {
    case 'round-robin':
      return equal(`in its turn, ${oneOf(count)}`)
    case 'random':
      return equal(`by chance, ${oneOf(count)}`)
    case 'least-connections':
      return equal(`when it has the fewest connections of ${count}`)
    case 'weighted': {
      const drawn = drawable(endpoints.map((endpoint) => ({ endpoint, weight: endpoint.weight })))
      const total = drawn.reduce((sum, { weight }) => sum + weight, 0)
      return drawn.map(({ endpoint, weight }) => {
        const why = `by chance, with weight ${weight} of ${total}`
        return { endpoint, probability: weight / total, why }
      })
    }
    case 'first':
      return only(firstOf(endpoints), `the first of ${count}, while it answers`)
    case 'source-hash':
      return only(endpoints[sourceBucket(client, count)], `by the address of the client`)
    case 'maglev': {
      const table = maglevTable(endpoints.map(({ key }) => key))
      const place = sourceBucket(client, maglevPlaces)
      return only(
        endpoints[table[place] ?? 0],
        `by the address of the client, at place ${place} of its table`,
      )
    }
  }
}
