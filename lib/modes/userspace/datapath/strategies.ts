import { sourceBucket } from '../../../kernel/jenkins-hash.js'
import { drawable, firstOf, maglevPlaces, maglevTable } from '../../shares.js'
import type { Balance } from '../../../state/balance.js'
import type { Target } from './data-path.js'

/** An order of endpoints for each new connection. */
export interface Strategy {
  /** Whether the order depends on the client. */
  readonly usesClient: boolean
  update(removed: ReadonlySet<string>, added: readonly Target[]): void
  /** All endpoints. The first is for this connection; the others are tried if it does not answer. */
  order(client: string): Iterable<Target>
  /** The endpoint gets the connection. */
  taken(target: Target): void
}

interface StrategyDeps {
  readonly random: () => number
  /** 1 for an endpoint without a weight of its own. */
  readonly weightOf: (key: string) => number
  /** How many connections the endpoint has now. */
  readonly openAt: (key: string) => number
}

export function strategyOf(word: Balance, deps: StrategyDeps): Strategy {
  switch (word) {
    case 'round-robin':
      return new InTurn(deps)
    case 'least-connections':
      return new LeastConnections(deps)
    case 'random':
      return new Sorted((all) => byChance(all, () => 1, deps.random))
    case 'weighted':
      return new Sorted((all) => byChance(all, ({ key }) => deps.weightOf(key), deps.random))
    case 'first':
      return new Sorted((all) => inRank(all, deps.weightOf))
    case 'source-hash':
      return new Sorted((all, client) => startingAt(all, sourceBucket(client, all.length)), true)
    case 'maglev':
      return new Sorted(maglevOrder(), true)
  }
}

/**
 * Round robin (US60). The rotation goes on where it was, with the remaining endpoints in their old
 * order. The original started over at each change, which favours the first endpoint when endpoints
 * change often. New endpoints enter at random places, so that the nodes of a cluster do not all
 * choose the same one next.
 */
class InTurn implements Strategy {
  readonly usesClient = false
  readonly #random: () => number
  #rotation: Target[] = []
  #next = 0

  constructor({ random }: Pick<StrategyDeps, 'random'>) {
    this.#random = random
  }

  update(removed: ReadonlySet<string>, added: readonly Target[]): void {
    if (removed.size > 0) {
      const before = this.#rotation.slice(0, this.#next)
      this.#next -= before.filter(({ key }) => removed.has(key)).length
      this.#rotation = this.#rotation.filter(({ key }) => !removed.has(key))
    }
    for (const target of added) {
      const index = Math.floor(this.#random() * (this.#rotation.length + 1))
      if (index < this.#next) this.#next++
      this.#rotation.splice(index, 0, target)
    }
  }

  order(): Iterable<Target> {
    return startingAt(this.#rotation, this.#next % Math.max(this.#rotation.length, 1))
  }

  taken(target: Target): void {
    // The endpoint is nearly always the next one. Then a list of thousands is not searched.
    const index =
      this.#rotation[this.#next] === target ? this.#next : this.#rotation.indexOf(target)
    this.#next = (index + 1) % Math.max(this.#rotation.length, 1)
  }
}

/**
 * The endpoint with the fewest connections comes first. Endpoints with equally many take turns, or
 * the first would get all short connections.
 */
class LeastConnections extends InTurn {
  readonly #openAt: StrategyDeps['openAt']

  constructor(deps: StrategyDeps) {
    super(deps)
    this.#openAt = deps.openAt
  }

  override *order(): Iterable<Target> {
    let least: Target | undefined
    let fewest = Infinity
    for (const target of super.order()) {
      const open = this.#openAt(target.key)
      if (open >= fewest) continue
      least = target
      fewest = open
      if (open === 0) break
    }
    if (!least) return
    yield least
    // The first one answers nearly always, so the others are seldom sorted.
    const others = [...super.order()].filter((each) => each !== least)
    const open = new Map(others.map((target) => [target, this.#openAt(target.key)]))
    yield* others.sort((a, b) => (open.get(a) ?? 0) - (open.get(b) ?? 0))
  }
}

/** Keeps the endpoints in the order of their keys, which is the same on all nodes, in all modes. */
class Sorted implements Strategy {
  readonly usesClient: boolean
  readonly #orderOf: (all: readonly Target[], client: string) => Iterable<Target>
  #all: readonly Target[] = []

  constructor(
    orderOf: (all: readonly Target[], client: string) => Iterable<Target>,
    usesClient = false,
  ) {
    this.#orderOf = orderOf
    this.usesClient = usesClient
  }

  update(removed: ReadonlySet<string>, added: readonly Target[]): void {
    const left = this.#all.filter(({ key }) => !removed.has(key))
    this.#all = [...left, ...added].sort((a, b) => (a.key < b.key ? -1 : 1))
  }

  order(client: string): Iterable<Target> {
    return this.#orderOf(this.#all, client)
  }

  taken(): void {
    // The next connection does not depend on this one.
  }
}

/** The endpoint at the client's place of the table, then the endpoints at the next places. */
function maglevOrder() {
  let known: readonly Target[] = []
  let table: Uint16Array = new Uint16Array()
  return function* (all: readonly Target[], client: string): Iterable<Target> {
    if (known !== all) table = maglevTable(all.map(({ key }) => key))
    known = all
    const place = sourceBucket(client, maglevPlaces)
    const seen = new Set<number>()
    for (let step = 0; step < maglevPlaces && seen.size < all.length; step++) {
      const index = table[(place + step) % maglevPlaces] ?? 0
      const target = all[index]
      if (seen.has(index) || !target) continue
      seen.add(index)
      yield target
    }
  }
}

function* startingAt(all: readonly Target[], start: number): Iterable<Target> {
  for (let step = 0; step < all.length; step++) {
    const target = all[(start + step) % all.length]
    if (target) yield target
  }
}

/** Draws one endpoint after the other. Its chance is its share of the weight that is left. */
function* byChance(
  all: readonly Target[],
  weightOf: (target: Target) => number,
  random: () => number,
): Iterable<Target> {
  let left = drawable(all.map((target) => ({ target, weight: weightOf(target) })))
  while (left.length > 0) {
    const total = left.reduce((sum, { weight }) => sum + weight, 0)
    let rest = random() * total
    const drawn = left.find(({ weight }) => (rest -= weight) < 0) ?? left.at(-1)
    if (!drawn) return
    yield drawn.target
    left = left.filter((each) => each !== drawn)
  }
}

/** The largest weight first. Endpoints of the same weight stay in order. */
function* inRank(all: readonly Target[], weightOf: (key: string) => number): Iterable<Target> {
  let left = all.map((target) => ({ target, weight: weightOf(target.key) }))
  for (let first = firstOf(left); first; first = firstOf(left)) {
    const { target } = first
    yield target
    left = left.filter((each) => each.target !== target)
  }
}
