import { AffinityTable } from './affinity.js'
import { PassiveHealth } from './passive-health.js'
import { strategyOf, type Strategy } from './strategies.js'
import { WaitingClients, type WaitingClient } from './waiting-clients.js'
import type {
  DataPathDeps,
  EndpointChoice,
  ListenerSpec,
  Target,
  EndpointChanges,
} from './data-path.js'
import type { Balance } from '../../../state/balance.js'

type Choice = Pick<EndpointChoice, 'endpoints' | 'affinityMs' | 'balance' | 'maxConnections'> &
  Partial<Pick<ListenerSpec, 'protocol' | 'service'>>
type Changes = Pick<
  EndpointChanges,
  'removed' | 'added' | 'affinityMs' | 'balance' | 'maxConnections'
>

type BalancerDeps = Pick<DataPathDeps, 'now' | 'random' | 'passiveHealth'> &
  Partial<Pick<DataPathDeps, 'ownFrontends' | 'warn'>>

/**
 * Chooses the endpoint for the next connection of one listener. With affinity a client gets the
 * endpoint that it used last (US62), unless this one fails or is full. Otherwise the strategy gives
 * the order, and endpoints that fail come last.
 */
export class Balancer {
  readonly #deps: BalancerDeps
  readonly #health: PassiveHealth | undefined
  #word: Balance = 'round-robin'
  #strategy: Strategy
  #weights: ReadonlyMap<string, number> = new Map()
  /** How many connections each endpoint has now. */
  readonly #open = new Map<string, number>()
  #most: number | undefined
  readonly #waiting: WaitingClients
  readonly #byKey = new Map<string, Target>()
  #affinity: AffinityTable | undefined

  readonly #protocol: 'TCP' | 'UDP'
  readonly #service: string

  constructor(deps: BalancerDeps, choice: Choice) {
    const { endpoints, protocol = 'TCP', service = '' } = choice
    this.#deps = deps
    this.#protocol = protocol
    this.#service = service
    this.#waiting = new WaitingClients(deps.now)
    this.#health = deps.passiveHealth ? new PassiveHealth() : undefined
    this.#strategy = this.#create(this.#word)
    this.update({ ...choice, removed: [], added: endpoints })
  }

  /** Whether `pick` needs the client's address; if not, callers need not format it. */
  get usesClient(): boolean {
    return this.#affinity !== undefined || this.#strategy.usesClient
  }

  /**
   * A client waits for room if endpoints have as many connections as they may have, and it has tried
   * all others in vain. False if it need not wait, or has waited enough.
   */
  waitForRoom(client: WaitingClient): boolean {
    return this.#isOutOfRoom(client.tried) && this.#waiting.enter(client)
  }

  stopWaiting(client: WaitingClient): void {
    this.#waiting.leave(client)
  }

  has(endpoint: string): boolean {
    return this.#byKey.has(endpoint)
  }

  /** Whether an endpoint is used, or has connections from before it left. */
  needs(endpoint: string): boolean {
    return this.has(endpoint) || this.#open.has(endpoint)
  }

  /** Takes new endpoints, affinity and another way to choose. */
  update({ removed, added, affinityMs, balance, maxConnections }: Changes): void {
    this.#most = maxConnections
    const gone = new Set(removed.filter((key) => this.#byKey.delete(key)))
    if (gone.size > 0) {
      this.#health?.forget(gone)
      this.#affinity?.forget(gone)
    }
    const fresh = added.filter(({ key }) => !this.#byKey.has(key))
    for (const target of fresh) this.#byKey.set(target.key, target)
    this.#weights = new Map(balance?.weights)
    const { word = 'round-robin' } = balance ?? {}
    if (word === this.#word) this.#strategy.update(gone, fresh)
    else {
      this.#word = word
      this.#strategy = this.#create(word)
      this.#strategy.update(new Set(), [...this.#byKey.values()])
    }
    this.#updateAffinity(affinityMs)
    this.#admit()
  }

  #create(word: Balance): Strategy {
    return strategyOf(word, {
      random: this.#deps.random,
      weightOf: (key) => this.#weights.get(key) ?? 1,
      openAt: (key) => this.#open.get(key) ?? 0,
    })
  }

  /**
   * The endpoint to dial, or undefined if there is none. `tried` holds the endpoints that this
   * connection has failed to reach: they are avoided while there are others, and the client's
   * affinity moves to the endpoint that is picked instead (US41). An endpoint that leads back to
   * this proxy is never picked. Call `ended` once for each endpoint that `pick` returns.
   */
  pick(client: string, tried: readonly Target[] = []): Target | undefined {
    const now = this.#deps.now()
    const own = tried.length === 0 ? this.#affinity?.find(client, now) : undefined
    const known = own === undefined ? undefined : this.#byKey.get(own)
    const isUsable = known && !this.#isFull(known) && !this.#health?.isSuspect(known.key, now)
    const target = isUsable && !this.#leadsBack(known) ? known : this.#choose(client, tried, now)
    if (!target) return undefined
    this.#health?.probe(target.key, now)
    this.#open.set(target.key, (this.#open.get(target.key) ?? 0) + 1)
    this.#affinity?.remember(client, target.key, now)
    return target
  }

  /** A UDP client tries once, so its next datagram must not come to the same endpoint. */
  dialFailed(target: Target, client?: string): void {
    if (client !== undefined) this.#affinity?.drop(client, target.key)
    if (this.#byKey.has(target.key)) this.#health?.failed(target.key, this.#deps.now())
  }

  dialSucceeded(target: Target): void {
    if (!this.mustProve(target)) this.#health?.succeeded(target.key)
  }

  /** Whether an accepted connection is not enough to trust this endpoint again. */
  mustProve({ key }: Target): boolean {
    return this.#health?.mustProve(key) ?? false
  }

  /** The endpoint accepted a connection, but then reset it at once or did not answer in time. */
  acceptedInVain({ key }: Target): void {
    if (this.#byKey.has(key)) this.#health?.failed(key, this.#deps.now(), true)
  }

  proved({ key }: Target): void {
    this.#health?.succeeded(key)
  }

  /** The connection to an endpoint is over, or could not be made. */
  ended({ key }: Target): void {
    const open = this.#open.get(key) ?? 0
    if (open > 1) this.#open.set(key, open - 1)
    else this.#open.delete(key)
    this.#admit()
  }

  #admit(): void {
    this.#waiting.admit((tried) => this.#isOutOfRoom(tried))
  }

  #isOutOfRoom(tried: readonly Target[]): boolean {
    if (this.#most === undefined) return false
    let isAnyFull = false
    for (const target of this.#byKey.values()) {
      if (this.#isFull(target)) isAnyFull = true
      else if (!tried.includes(target)) return false
    }
    return isAnyFull
  }

  /**
   * The first endpoint in order that has room, was not tried and does not fail. If there is none,
   * the first that has room and was not tried; then the first that has room. Never an endpoint that
   * leads back here.
   */
  #choose(client: string, tried: readonly Target[], now: number): Target | undefined {
    let first: Target | undefined
    let untried: Target | undefined
    for (const target of this.#strategy.order(client)) {
      if (this.#isFull(target) || this.#leadsBack(target)) continue
      first ??= target
      if (tried.includes(target)) continue
      if (!this.#health?.isSuspect(target.key, now)) return this.#take(target)
      untried ??= target
    }
    return this.#take(untried ?? first)
  }

  #isFull({ key }: Target): boolean {
    return this.#most !== undefined && (this.#open.get(key) ?? 0) >= this.#most
  }

  #leadsBack(target: Target): boolean {
    const { ownFrontends, warn } = this.#deps
    if (!ownFrontends?.has(this.#protocol, target)) return false
    warn?.(`endpoint ${target.key} of ${this.#service} leads back to this proxy: it is not used`)
    return true
  }

  #take(target: Target | undefined): Target | undefined {
    if (target) this.#strategy.taken(target)
    return target
  }

  #updateAffinity(ttlMs: number | undefined): void {
    if (ttlMs === undefined) {
      // If affinity is switched on again, it begins without records (US68).
      this.#affinity = undefined
      return
    }
    this.#affinity ??= new AffinityTable(ttlMs)
    this.#affinity.ttlMs = ttlMs
  }
}
