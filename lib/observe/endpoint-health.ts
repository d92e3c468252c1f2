import { checkText } from '../state/endpoint-check.js'
import { portNameOf } from '../state/names.js'
import { HealthEvents, type HealthEventsOptions } from './health-events.js'
import { mostNamed } from './health-note.js'
import type { EndpointFailure } from '../state/endpoint-health.js'
import type { EndpointTurn, HealthListener, PortHealth } from '../sources/health/health-checks.js'
import type { Log, Meter } from '../modes/mode.js'
import type { StatusLine } from './mode-status.js'

interface EndpointHealthOptions extends HealthEventsOptions {
  readonly log: Log
  readonly meter: Meter
}

/** Turns the results of endpoint checks into log lines, metrics, Events and health answers. */
export class EndpointHealth implements HealthListener {
  readonly #options: EndpointHealthOptions
  readonly #ports = new Map<string, PortHealth>()
  readonly #events: HealthEvents

  constructor(options: EndpointHealthOptions) {
    this.#options = options
    this.#events = new HealthEvents(options)
  }

  /** Records Events until the signal. */
  run(signal: AbortSignal): Promise<void> {
    return this.#events.run(signal)
  }

  followed(key: string, health: PortHealth | undefined): void {
    const { meter } = this.#options
    const before = this.#ports.get(key)
    this.#events.followed(before, health)
    if (health) {
      this.#ports.set(key, health)
      this.#gauge(health)
    } else if (before) {
      this.#ports.delete(key)
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
    }
    this.#events.turned(health, turns)
    this.#gauge(health)
  }

  counted(counts: Readonly<Record<string, number>>): void {
    for (const [outcome, count] of Object.entries(counts)) {
      if (count > 0) this.#options.meter.count('health_checks_total', { outcome }, count)
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
}

const directions = ['failing', 'working'] as const

function labelsOf({ port, family }: PortHealth) {
  return { service: portNameOf(port), protocol: port.protocol, ip_family: family }
}
