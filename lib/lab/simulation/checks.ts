import { Schedule } from '../../sources/health/schedule.js'
import { Turns } from '../../sources/health/turns.js'
import type { CheckTarget } from '../../sources/health/messages.js'
import type { DesiredState } from '../../state/desired-state.js'
import type { EndpointFailure } from '../../state/endpoint-health.js'
import type { Outcome } from '../../sources/health/outcome.js'
import type { ServicePortName } from '../../state/names.js'
import type { SimulationDeps } from './simulation-deps.js'

export interface SimulatedChecksDeps extends SimulationDeps {
  /** What a check of this endpoint finds. */
  readonly probe: (target: CheckTarget) => Outcome
  /** Called when an endpoint begins or ceases to fail. */
  readonly turned: () => void
}

interface Checked {
  readonly port: ServicePortName
  readonly endpoint: string
  readonly target: CheckTarget
}

/** The daemon's health checks, with the product's times and counts. Only answers are simulated. */
export class SimulatedChecks {
  readonly #schedule: Schedule
  readonly #checked = new Map<string, Checked>()
  readonly #failing = new Map<string, EndpointFailure>()

  constructor({ now, random, probe, turned }: SimulatedChecksDeps) {
    const timer = (ms: number, then: () => void) => {
      const started = setTimeout(then, ms)
      return () => clearTimeout(started)
    }
    this.#schedule = new Schedule({
      ...{ now, random, most: 256 },
      turns: new Turns({ now, timer, turnMs: 50 }),
      probe: (target) => Promise.resolve(probe(target)),
      turned: ({ id, reason }) => {
        const found = this.#checked.get(id)
        if (!found) return
        if (reason === undefined) this.#failing.delete(id)
        else this.#failing.set(id, { port: found.port, endpoint: found.endpoint, reason })
        turned()
      },
    })
  }

  get failing(): readonly EndpointFailure[] {
    return [...this.#failing.values()]
  }

  /** Checks only the endpoints of this state; without a state, none. */
  follow(state?: DesiredState): void {
    const wanted = new Map(
      [...(state?.services.values() ?? [])].flatMap(({ key, name, health }) =>
        (health?.endpoints ?? []).map(({ key: endpoint, ip, port }) => {
          const id = `${key} ${endpoint}`
          const check = health?.check
          return [id, { port: name, endpoint, target: { id, ip, port, check } }] as const
        }),
      ),
    )
    for (const id of this.#checked.keys()) {
      if (wanted.has(id)) continue
      this.#schedule.remove(id)
      this.#checked.delete(id)
      this.#failing.delete(id)
    }
    for (const [id, { port, endpoint, target }] of wanted) {
      const { check } = target
      const known = this.#checked.get(id)?.target.check
      if (!check || JSON.stringify(known) === JSON.stringify(check)) continue
      const entry = { ...target, check, reason: this.#failing.get(id)?.reason }
      this.#checked.set(id, { port, endpoint, target: entry })
      this.#schedule.set(entry)
    }
  }
}
