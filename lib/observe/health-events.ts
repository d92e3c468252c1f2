import { Bell, pause } from '../async.js'
import { keyOf } from '../state/names.js'
import { healthNote } from './health-note.js'
import type { EndpointTurn, PortHealth } from '../sources/health/health-checks.js'
import type { EventRecorder } from './events.js'

export interface HealthEventsOptions {
  readonly events: EventRecorder
  /** Milliseconds of a clock that nobody can set. */
  readonly now: () => number
  readonly sleep?: typeof pause
}

/** An endpoint that fails and works by turns must not use up the Events of others. */
const eventEveryMs = 60_000
/** The checks of a pod's ports and families end one after the other. */
const gatherMs = 1000

type Direction = 'failing' | 'working'
const other = { failing: 'working', working: 'failing' } as const

/** What no Event has told yet. */
interface Untold {
  readonly since: number
  /** By the key of the service port, then by `Endpoint.key`. */
  readonly turns: Map<string, Map<string, EndpointTurn>>
}

interface CheckedService {
  readonly ports: Map<string, PortHealth>
  readonly untold: { [to in Direction]?: Untold | undefined }
  /** When the last Event was recorded. */
  readonly toldAt: { [to in Direction]?: number }
}

/**
 * One Event tells what changes within a second in all ports and families of a Service. What comes
 * within a minute of an Event is told together after it, unless it has changed back.
 */
export class HealthEvents {
  readonly #options: Required<HealthEventsOptions>
  /** By namespace and name. */
  readonly #services = new Map<string, CheckedService>()
  readonly #bell = new Bell()

  constructor(options: HealthEventsOptions) {
    this.#options = { sleep: pause, ...options }
  }

  followed(before: PortHealth | undefined, health: PortHealth | undefined): void {
    if (health) {
      const id = serviceOf(health)
      const known = this.#services.get(id) ?? { ports: new Map(), untold: {}, toldAt: {} }
      this.#services.set(id, known)
      known.ports.set(idOf(health), health)
    } else if (before) {
      const service = this.#services.get(serviceOf(before))
      service?.ports.delete(idOf(before))
      if (service?.ports.size === 0) this.#services.delete(serviceOf(before))
    }
  }

  turned(health: PortHealth, turns: readonly EndpointTurn[]): void {
    const service = this.#services.get(serviceOf(health))
    if (!service) return
    const id = idOf(health)
    service.ports.set(id, health)
    for (const turn of turns) {
      const to = turn.reason === undefined ? 'working' : 'failing'
      // It is again as it was told last.
      if (service.untold[other[to]]?.turns.get(id)?.delete(turn.endpoint)) continue
      const untold: Untold = (service.untold[to] ??= {
        since: this.#options.now(),
        turns: new Map(),
      })
      const its = untold.turns.get(id) ?? new Map<string, EndpointTurn>()
      untold.turns.set(id, its.set(turn.endpoint, turn))
    }
    this.#bell.ring()
  }

  async run(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      const next = this.#tellDue()
      await this.#options.sleep(next - this.#options.now(), signal, this.#bell)
      this.#bell.silence()
    }
  }

  /** Records the Events that are due. Returns when the next one is. */
  #tellDue(): number {
    let next = Infinity
    for (const service of this.#services.values()) {
      for (const to of ['failing', 'working'] as const) {
        const { untold, toldAt } = service
        if (untold[to] === undefined) continue
        const due = Math.max(untold[to].since + gatherMs, (toldAt[to] ?? -Infinity) + eventEveryMs)
        if (due > this.#options.now()) next = Math.min(next, due)
        else this.#tell(service, to, untold[to])
      }
    }
    return next
  }

  #tell(service: CheckedService, to: Direction, { turns }: Untold): void {
    service.untold[to] = undefined
    const its = new Map<string, EndpointTurn>()
    for (const [id, byEndpoint] of turns) {
      const failing = service.ports.get(id)?.failing
      for (const [endpoint, turn] of byEndpoint) {
        if (failing && failing.has(endpoint) === (to === 'failing')) its.set(endpoint, turn)
      }
    }
    const [first] = service.ports.values()
    if (its.size === 0 || !first) return
    service.toldAt[to] = this.#options.now()
    const { namespace, name } = first.port
    this.#options.events.record({
      type: to === 'failing' ? 'Warning' : 'Normal',
      reason: to === 'failing' ? 'EndpointFailing' : 'EndpointWorking',
      action: 'Check',
      note: healthNote([...service.ports.values()], [...its.values()]),
      regarding: { kind: 'Service', namespace, name },
    })
  }
}

function serviceOf({ port: { namespace, name } }: PortHealth): string {
  return `${namespace}/${name}`
}

/** The key of `HealthListener.followed`. */
function idOf({ family, port }: PortHealth): string {
  return `${family} ${keyOf(port)}`
}
