import { AffinityTable } from './affinity.js'
import { PassiveHealth } from './passive-health.js'
import type { EndpointChoice, ListenerSpec, Target, EndpointChanges } from './data-path.js'
import type { OwnFrontends } from './own-frontends.js'

type Choice = Pick<EndpointChoice, 'endpoints' | 'affinityMs'> &
  Partial<Pick<ListenerSpec, 'protocol' | 'service'>>
type Changes = Pick<EndpointChanges, 'removed' | 'added' | 'affinityMs'>

export interface BalancerDeps {
  readonly now: () => number
  readonly random: () => number
  readonly passiveHealth: boolean
  readonly ownFrontends?: Pick<OwnFrontends, 'has'>
  readonly warn?: (message: string) => void
}

/**
 * Decides which endpoint the next connection of one listener gets: strict round robin (US60), but
 * the client's own endpoint first where affinity is on (US62), and failing endpoints last.
 */
export class Balancer {
  readonly #deps: BalancerDeps
  readonly #health: PassiveHealth | undefined
  #rotation: Target[] = []
  #next = 0
  readonly #byKey = new Map<string, Target>()
  #affinity: AffinityTable | undefined

  readonly #protocol: 'TCP' | 'UDP'
  readonly #service: string

  constructor(deps: BalancerDeps, choice: Choice) {
    const { endpoints, affinityMs, protocol = 'TCP', service = '' } = choice
    this.#deps = deps
    this.#protocol = protocol
    this.#service = service
    this.#health = deps.passiveHealth ? new PassiveHealth() : undefined
    this.update({ removed: [], added: endpoints, affinityMs })
  }

  /** Without affinity `pick` does not look at its client, so callers need not format its address. */
  get usesAffinity(): boolean {
    return this.#affinity !== undefined
  }

  has(endpoint: string): boolean {
    return this.#byKey.has(endpoint)
  }

  /**
   * Takes new endpoints and affinity. The rotation goes on where it was, with the remaining
   * endpoints in their old order. The original started over at each change, which favours the
   * first endpoint when endpoints change often. New endpoints enter at random places, so that
   * the nodes of a cluster do not all choose the same one next.
   */
  update({ removed, added, affinityMs }: Changes): void {
    const gone = new Set(removed.filter((key) => this.#byKey.delete(key)))
    if (gone.size > 0) this.#remove(gone)
    for (const target of added) {
      if (this.#byKey.has(target.key)) continue
      this.#byKey.set(target.key, target)
      const index = Math.floor(this.#deps.random() * (this.#rotation.length + 1))
      if (index < this.#next) this.#next++
      this.#rotation.splice(index, 0, target)
    }
    this.#updateAffinity(affinityMs)
  }

  #remove(gone: ReadonlySet<string>): void {
    const before = this.#rotation.slice(0, this.#next)
    this.#next -= before.filter(({ key }) => gone.has(key)).length
    this.#rotation = this.#rotation.filter(({ key }) => !gone.has(key))
    this.#health?.forget(gone)
    this.#affinity?.forget(gone)
  }

  /**
   * The endpoint to dial, or undefined if there is none. `tried` holds the endpoints this
   * connection has failed to reach: they are avoided while there are others, and the client's
   * affinity moves to the endpoint that is picked instead (US41). Never one that leads back here.
   */
  pick(client: string, tried: readonly Target[] = []): Target | undefined {
    const now = this.#deps.now()
    const own = tried.length === 0 ? this.#affinity?.find(client, now) : undefined
    const known = own === undefined ? undefined : this.#byKey.get(own)
    const target =
      known && !this.#health?.isSuspect(known.key, now) && !this.#leadsBack(known)
        ? known
        : this.#rotate(tried, now)
    if (!target) return undefined
    this.#health?.probe(target.key, now)
    this.#affinity?.remember(client, target.key, now)
    return target
  }

  dialFailed(target: Target): void {
    if (this.#byKey.has(target.key)) this.#health?.failed(target.key, this.#deps.now())
  }

  dialSucceeded(target: Target): void {
    this.#health?.succeeded(target.key)
  }

  /** The next in turn that does not fail; else the next that was not tried; else the next. */
  #rotate(tried: readonly Target[], now: number): Target | undefined {
    const count = this.#rotation.length
    let untried = -1
    for (let step = 0; step < count; step++) {
      const index = (this.#next + step) % count
      const target = this.#rotation[index]
      if (!target || tried.includes(target) || this.#leadsBack(target)) continue
      if (!this.#health?.isSuspect(target.key, now)) return this.#take(index)
      if (untried < 0) untried = index
    }
    const again = this.#rotation[this.#next % Math.max(count, 1)]
    if (untried < 0 && again && this.#leadsBack(again)) return undefined
    return this.#take(untried >= 0 ? untried : this.#next % Math.max(count, 1))
  }

  #leadsBack(target: Target): boolean {
    const { ownFrontends, warn } = this.#deps
    if (!ownFrontends?.has(this.#protocol, target)) return false
    warn?.(`endpoint ${target.key} of ${this.#service} leads back to this proxy: it is not used`)
    return true
  }

  #take(index: number): Target | undefined {
    this.#next = (index + 1) % Math.max(this.#rotation.length, 1)
    return this.#rotation[index]
  }

  #updateAffinity(ttlMs: number | undefined): void {
    if (ttlMs === undefined) {
      // If affinity is switched on again, it begins without records (US68).
      this.#affinity = undefined
      return
    }
    if (!this.#affinity) this.#affinity = new AffinityTable(ttlMs)
    else if (this.#affinity.ttlMs !== ttlMs) this.#affinity = this.#affinity.withTtl(ttlMs)
  }
}
