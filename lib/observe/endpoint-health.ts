import { checkText } from '../state/endpoint-check.js'
import { keyOf, portNameOf } from '../state/names.js'
import type { EndpointFailure } from '../state/endpoint-health.js'
import type { EndpointTurn, HealthListener, PortHealth } from '../sources/health/health-checks.js'
import type { EventRecorder } from './events.js'
import type { Log, Meter } from '../modes/mode.js'
import type { StatusLine } from './mode-status.js'

interface EndpointHealthOptions {
  readonly log: Log
  readonly meter: Meter
  readonly events: EventRecorder
  /** Milliseconds of a clock that nobody can set. */
  readonly now: () => number
}

/** An endpoint that fails and works by turns must not use up the Events of others. */
const eventEveryMs = 60_000
/** How many endpoints one line names. */
const mostNamed = 5

/** Turns the results of endpoint checks into log lines, metrics, Events and health answers. */
export class EndpointHealth implements HealthListener {
  readonly #options: EndpointHealthOptions
  readonly #ports = new Map<string, PortHealth>()
  /** When the last Event of a Service was recorded. */
  readonly #toldAt = new Map<string, number>()
  /** What no Event has told yet, because the last one is less than a minute old. */
  readonly #untold = new Map<string, Untold>()

  constructor(options: EndpointHealthOptions) {
    this.#options = options
  }

  followed(key: string, health: PortHealth | undefined): void {
    const { meter } = this.#options
    const before = this.#ports.get(key)
    if (health) {
      this.#ports.set(key, health)
      this.#gauge(health)
    } else if (before) {
      this.#ports.delete(key)
      for (const to of directions) this.#untold.delete(`${key} ${to}`)
      this.#gauge({ ...before, checked: 0, failing: new Map() })
      meter.forget(labelsOf(before))
    }
  }

  turned(health: PortHealth, turns: readonly EndpointTurn[]): void {
    const { log, meter } = this.#options
    const labels = labelsOf(health)
    for (const to of directions) {
      const its = turns.filter(({ reason }) => (to === 'failing') === (reason !== undefined))
      if (its.length === 0) continue
      meter.count('endpoint_health_changes_total', { ...labels, to }, its.length)
      const fields = {
        ...labels,
        check: checkText(health.check),
        endpoints: its.slice(0, mostNamed),
      }
      const counts = { count: its.length, failing: health.failing.size, checked: health.checked }
      if (to === 'failing') log.warn({ ...fields, ...counts }, 'endpoints fail their health check')
      else log.info({ ...fields, ...counts }, 'endpoints pass their health check again')
      this.#record(health, to, its)
    }
    this.#gauge(health)
  }

  counted(counts: Readonly<Record<string, number>>): void {
    for (const [outcome, count] of Object.entries(counts)) {
      if (count > 0) this.#options.meter.count('health_checks_total', { outcome }, count)
    }
    // This comes once a second, so it needs no timer of its own.
    for (const { health, to } of [...this.#untold.values()]) {
      this.#record(this.#ports.get(idOf(health)) ?? health, to, [])
    }
  }

  threadEnded(reason: string): void {
    this.#options.log.error({ reason }, 'the thread that checks endpoints ended, it starts again')
  }

  /** The lines for `/healthz?verbose`; none while no Service asks for checks. */
  lines(): readonly StatusLine[] {
    if (this.#ports.size === 0) return []
    let checked = 0
    for (const port of this.#ports.values()) checked += port.checked
    const failing = this.failing()
    const named = failing
      .slice(0, mostNamed)
      .map(({ port, endpoint, reason }) => `${portNameOf(port)} ${endpoint}: ${reason}`)
    const more = failing.length > named.length ? [`${failing.length - named.length} more`] : []
    const text = `${checked} checked, ${failing.length} fail`
    return [
      {
        name: 'health checks of endpoints',
        isGood: failing.length === 0,
        text: [text, ...named, ...more].join('; '),
      },
    ]
  }

  failing(): readonly EndpointFailure[] {
    return [...this.#ports.values()].flatMap(({ port, failing }) =>
      Array.from(failing, ([endpoint, reason]) => ({ port, endpoint, reason })),
    )
  }

  #gauge(health: PortHealth): void {
    const labels = labelsOf(health)
    const { meter } = this.#options
    meter.gauge('endpoints_checked', labels, health.checked)
    meter.gauge('endpoints_failing', labels, health.failing.size)
  }

  /**
   * Endpoints of a node that dies fail one after the other, as their checks are spread. So what
   * comes within a minute of an Event is told together after it, unless it has changed back.
   */
  #record(health: PortHealth, to: Direction, turns: readonly EndpointTurn[]): void {
    const { now } = this.#options
    const { namespace, name } = health.port
    const id = `${idOf(health)} ${to}`
    const waiting = this.#untold.get(id)?.turns ?? new Map<string, EndpointTurn>()
    for (const turn of turns) waiting.set(turn.endpoint, turn)
    const service = `${namespace}/${name} ${to}`
    const last = this.#toldAt.get(service)
    if (last !== undefined && now() - last < eventEveryMs) {
      this.#untold.set(id, { health, to, turns: waiting })
      return
    }
    this.#untold.delete(id)
    const its = [...waiting.values()].filter(
      ({ endpoint }) => health.failing.has(endpoint) === (to === 'failing'),
    )
    if (its.length === 0) return
    if (this.#toldAt.size >= 1000) this.#toldAt.clear()
    this.#toldAt.set(service, now())
    this.#tell(health, to, its)
  }

  #tell(health: PortHealth, to: Direction, turns: readonly EndpointTurn[]): void {
    const { namespace, name } = health.port
    const named = turns
      .slice(0, mostNamed)
      .map(({ endpoint, reason }) => (reason === undefined ? endpoint : `${endpoint} (${reason})`))
    const more = turns.length > named.length ? ` and ${turns.length - named.length} more` : ''
    const works = health.checked - health.failing.size
    const verb = to === 'failing' ? 'fail' : 'pass again'
    this.#options.events.record({
      type: to === 'failing' ? 'Warning' : 'Normal',
      reason: to === 'failing' ? 'EndpointFailing' : 'EndpointWorking',
      action: 'Check',
      note: `health check ${checkText(health.check)} from this node: ${named.join(', ')}${more} ${verb}; ${works} of ${health.checked} endpoints work`,
      regarding: { kind: 'Service', namespace, name },
    })
  }
}

const directions = ['failing', 'working'] as const
type Direction = (typeof directions)[number]

interface Untold {
  readonly health: PortHealth
  readonly to: Direction
  /** By `Endpoint.key`. */
  readonly turns: Map<string, EndpointTurn>
}

/** The key of {@link HealthListener.followed}. */
function idOf({ family, port }: PortHealth): string {
  return `${family} ${keyOf(port)}`
}

function labelsOf({ port, family }: PortHealth) {
  return { service: portNameOf(port), protocol: port.protocol, ip_family: family }
}
