import type { Meter } from '../../modes/mode.js'
import { noCounters } from './endpoint-counts.js'
import {
  keyOf,
  type Carried,
  type CountedPort,
  type EndpointGrowth,
  type EndpointName,
  type TurnedAway,
} from './messages.js'

type Labels = Readonly<Record<string, string>>
type Changing<T> = { -readonly [Name in keyof T]: T[Name] }

/**
 * A meter for a mode that carries connections itself. The numbers of Services that outlive the
 * process go to the thread that keeps them, and come back from it. All others go to `meter`.
 */
export class LastingMeter implements Meter {
  readonly #meter: Meter
  readonly #tell: (growth: Carried) => void
  readonly #counts = new Map<string, Changing<EndpointGrowth>>()
  readonly #turnedAway = new Map<string, Changing<TurnedAway>>()
  readonly #left = new Map<string, EndpointName>()
  #isTelling = false

  constructor(meter: Meter, tell: (growth: Carried) => void) {
    this.#meter = meter
    this.#tell = tell
  }

  count(name: string, labels: Labels, by = 1): void {
    switch (name) {
      case 'service_connections_total':
        this.#ofEndpoint(labels).opened += by
        break
      case 'service_bytes_total':
        if (labels['direction'] === 'to_client') this.#ofEndpoint(labels).bytesToClient += by
        else this.#ofEndpoint(labels).bytesToEndpoint += by
        break
      case 'service_refused_connections_total':
        this.#ofService(labels).refused += by
        break
      default:
        this.#meter.count(name, labels, by)
    }
  }

  gauge(name: string, labels: Labels, value: number): void {
    this.#meter.gauge(name, labels, value)
  }

  observe(name: string, labels: Labels, value: number): void {
    this.#meter.observe(name, labels, value)
  }

  /**
   * The thread forgets an endpoint, or a service port that no family serves any more, once it has
   * heard of it.
   */
  forget(labels: Labels): void {
    if (labels['endpoint'] !== undefined) {
      const names = endpointIn(labels)
      this.#left.set(keyOf(names), names)
      this.#tellSoon()
      return
    }
    this.#ofService(labels)
    this.#meter.gauge('service_active_connections', labels, 0)
  }

  #ofEndpoint(labels: Labels): Changing<EndpointGrowth> {
    const names = endpointIn(labels)
    const key = keyOf(names)
    // Another listener of the same Service still counts at it.
    this.#left.delete(key)
    const known = this.#counts.get(key) ?? { ...names, opened: 0, ...noCounters() }
    this.#counts.set(key, known)
    this.#tellSoon()
    return known
  }

  #ofService(labels: Labels): Changing<TurnedAway> {
    const names = portIn(labels)
    const key = keyOf(names)
    const known = this.#turnedAway.get(key) ?? { ...names, refused: 0, dropped: 0 }
    this.#turnedAway.set(key, known)
    this.#tellSoon()
    return known
  }

  /** A worker's report has many numbers, which become one message. */
  #tellSoon(): void {
    if (this.#isTelling) return
    this.#isTelling = true
    queueMicrotask(() => {
      this.#isTelling = false
      const [counts, turnedAway] = [[...this.#counts.values()], [...this.#turnedAway.values()]]
      const left = [...this.#left.values()]
      for (const told of [this.#counts, this.#turnedAway, this.#left]) told.clear()
      this.#tell({ counts, turnedAway, left })
    })
  }
}

function portIn({ service = '', protocol }: Labels): CountedPort {
  return { service, protocol: protocol === 'UDP' ? 'UDP' : 'TCP' }
}

function endpointIn(labels: Labels): EndpointName {
  return { ...portIn(labels), endpoint: labels['endpoint'] ?? '' }
}
