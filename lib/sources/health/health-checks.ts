import type { CheckThread, CheckThreadOptions } from './check-thread.js'
import type { ServicePortName } from '../../state/names.js'
import type { CheckCounts, CheckTarget, Turn } from './messages.js'
import type { DesiredService, DesiredState } from '../../state/desired-state.js'
import type { EndpointCheck } from '../../state/endpoint-check.js'
import type { IpFamily } from '../../state/ip.js'
import type { PersistentMap } from '../../state/persistent-map.js'
import type { Tracker } from '../../state/tracker.js'

/** The health of the endpoints of one service port. */
export interface PortHealth {
  readonly port: ServicePortName
  readonly family: IpFamily
  readonly check: EndpointCheck
  /** How many endpoints are checked. */
  readonly checked: number
  /** Why endpoints fail, by `Endpoint.key`. */
  readonly failing: ReadonlyMap<string, string>
}

export interface HealthListener {
  /** Endpoints of this service port fail now, or work again. */
  turned(health: PortHealth, turns: readonly EndpointTurn[]): void
  /** The set of checked endpoints has changed; `undefined`: none is checked any more. */
  followed(key: string, health: PortHealth | undefined): void
  counted(counts: CheckCounts): void
  /** The thread that checks has ended; another one starts soon. */
  threadEnded(reason: string): void
}

export interface EndpointTurn {
  /** `Endpoint.key` */
  readonly endpoint: string
  /** Why the endpoint fails; undefined if it works again. */
  readonly reason: string | undefined
}

/** What checks: a thread of its own, or in the playground a simulation. */
export type Checker = Pick<CheckThread, 'set' | 'remove' | 'flush' | 'run'>

interface HealthChecksOptions {
  readonly checker: (options: CheckThreadOptions) => Checker
  readonly tracker: Pick<Tracker, 'setEndpointHealth'>
  /** Asks for a sync, because the state will differ. */
  readonly requestSync: () => void
  readonly listener: HealthListener
}

interface CheckedPort {
  readonly port: ServicePortName
  readonly family: IpFamily
  check: EndpointCheck
  /** By `Endpoint.key`. */
  readonly targets: Map<string, CheckTarget>
  readonly failing: Map<string, string>
}

/**
 * Tells the checker what the newest states ask for, and puts its results into the tracker. From then on the state knows which endpoints fail, as it knows which are not ready.
 */
export class HealthChecks {
  readonly #options: HealthChecksOptions
  readonly #seen = new Map<IpFamily, PersistentMap<DesiredService>>()
  readonly #ports = new Map<string, CheckedPort>()
  /** By id of the target. */
  readonly #owners = new Map<string, { readonly checked: CheckedPort; readonly endpoint: string }>()
  readonly #checker: Checker

  constructor(options: HealthChecksOptions) {
    this.#options = options
    this.#checker = options.checker({
      targets: () => this.#targets(),
      reported: ({ turns, counts }) => {
        options.listener.counted(counts)
        this.#take(turns)
      },
      ended: (reason) => options.listener.threadEnded(reason),
    })
  }

  /** A sync of these states starts. */
  started({ states }: { readonly states: readonly DesiredState[] }): void {
    for (const { family, services } of states) {
      const { added, changed, removed } = services.since(this.#seen.get(family))
      this.#seen.set(family, services)
      for (const [key] of removed) this.#follow(family, key, undefined)
      for (const [key, service] of [...added, ...changed]) this.#follow(family, key, service)
    }
    this.#checker.flush()
  }

  /** Checks until the signal. */
  run(signal: AbortSignal): Promise<void> {
    return this.#checker.run(signal)
  }

  #follow(family: IpFamily, key: string, service: DesiredService | undefined): void {
    const id = `${family} ${key}`
    const known = this.#ports.get(id)
    const health = service?.health
    if (!service || !health) {
      if (!known) return
      for (const endpoint of known.targets.keys()) this.#drop(id, known, endpoint)
      this.#ports.delete(id)
      this.#options.listener.followed(id, undefined)
      return
    }
    const { check, endpoints } = health
    const checked: CheckedPort = known ?? {
      ...{ port: service.name, family, check, targets: new Map(), failing: new Map() },
    }
    this.#ports.set(id, checked)
    const isOther = JSON.stringify(checked.check) !== JSON.stringify(check)
    checked.check = check
    const wanted = new Set(endpoints.map((each) => each.key))
    for (const endpoint of checked.targets.keys()) {
      if (!wanted.has(endpoint)) this.#drop(id, checked, endpoint)
    }
    for (const { key: endpoint, ip, port } of endpoints) {
      if (checked.targets.has(endpoint) && !isOther) continue
      const { namespace } = checked.port
      const target = { id: `${id} ${endpoint}`, namespace, ip, port, check, reason: undefined }
      checked.targets.set(endpoint, target)
      this.#owners.set(target.id, { checked, endpoint })
      this.#checker.set({ ...target, reason: checked.failing.get(endpoint) })
    }
    this.#options.listener.followed(id, healthOf(checked))
  }

  /** Forgets the endpoint. If it comes back, its checks begin anew. */
  #drop(id: string, checked: CheckedPort, endpoint: string): void {
    checked.targets.delete(endpoint)
    this.#owners.delete(`${id} ${endpoint}`)
    this.#checker.remove(`${id} ${endpoint}`)
    if (!checked.failing.delete(endpoint)) return
    this.#options.tracker.setEndpointHealth(checked.port, endpoint, undefined)
  }

  #take(turns: readonly Turn[]): void {
    const byPort = new Map<CheckedPort, EndpointTurn[]>()
    for (const { id, reason } of turns) {
      const owner = this.#owners.get(id)
      // The endpoint left while its result was under way.
      if (!owner) continue
      const { checked, endpoint } = owner
      const isTurn = checked.failing.has(endpoint) !== (reason !== undefined)
      if (reason === undefined) checked.failing.delete(endpoint)
      else checked.failing.set(endpoint, reason)
      this.#options.tracker.setEndpointHealth(checked.port, endpoint, reason)
      if (!isTurn) continue
      const its = byPort.get(checked) ?? []
      its.push({ endpoint, reason })
      byPort.set(checked, its)
    }
    for (const [checked, its] of byPort) this.#options.listener.turned(healthOf(checked), its)
    if (byPort.size > 0) this.#options.requestSync()
  }

  *#targets(): Iterable<CheckTarget> {
    for (const { targets, failing } of this.#ports.values()) {
      for (const [endpoint, target] of targets) {
        yield { ...target, reason: failing.get(endpoint) }
      }
    }
  }
}

function healthOf({ port, family, check, targets, failing }: CheckedPort): PortHealth {
  return { port, family, check, checked: targets.size, failing }
}
