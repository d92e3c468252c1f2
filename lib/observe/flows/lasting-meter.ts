import type { Meter } from '../../modes/mode.js'
import type { Protocol } from '../../state/names.js'
import { noCounters } from './endpoint-counts.js'
import type { Carried, EndpointGrowth, EndpointName, TurnedAway } from './messages.js'

type Labels = Readonly<Record<string, string>>
type Changing<T> = { -readonly [Name in keyof T]: T[Name] }

/**
 * A meter for a mode that carries connections itself. The numbers of Services that outlive the
 * process go to the thread that keeps them, and come back from it. All others go to `meter`.
 */
export class LastingMeter implements Meter {
  readonly #meter: Meter
  readonly #tell: (growth: Carried) => void
  #counts = new Map<string, Changing<EndpointGrowth>>()
  #turnedAway = new Map<string, Changing<TurnedAway>>()
  #left = new Map<string, EndpointName>()
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
    const { endpoint } = labels
    if (endpoint !== undefined) {
      this.#left.set(endpointKey(labels), { ...namesIn(labels), endpoint })
      this.#tellSoon()
      return
    }
    this.#ofService(labels)
    this.#meter.gauge('service_active_connections', labels, 0)
  }

  #ofEndpoint(labels: Labels): Changing<EndpointGrowth> {
    const { endpoint = '' } = labels
    const names = namesIn(labels)
    const key = endpointKey(labels)
    // Another listener of the same Service still counts at it.
    this.#left.delete(key)
    const known = this.#counts.get(key) ?? { ...names, endpoint, opened: 0, ...noCounters() }
    this.#counts.set(key, known)
    this.#tellSoon()
    return known
  }

  #ofService(labels: Labels): Changing<TurnedAway> {
    const names = namesIn(labels)
    const key = `${names.service} ${names.protocol}`
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
      this.#counts = new Map()
      const left = [...this.#left.values()]
      this.#turnedAway = new Map()
      this.#left = new Map()
      this.#tell({ counts, turnedAway, left })
    })
  }
}

function endpointKey(labels: Labels): string {
  const { service, protocol } = namesIn(labels)
  return `${service} ${protocol} ${labels['endpoint'] ?? ''}`
}

function namesIn({ service = '', protocol }: Labels): {
  readonly service: string
  readonly protocol: Protocol
} {
  return { service, protocol: protocol === 'UDP' ? 'UDP' : 'TCP' }
}
