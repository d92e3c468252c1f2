import type { Meter } from '../../mode.js'
import type { ListenerCounts } from '../datapath/traffic.js'

/** So many pairs of service port and endpoint have numbers of their own. The rest is `other`. */
const maxPairs = 4096

/** The metrics of an endpoint, the labels that only they have, and what they count. */
const counters = [
  ['service_connections_total', {}, 'connections'],
  ['service_dial_errors_total', {}, 'dialErrors'],
  ['service_proxy_headers_refused_total', {}, 'headersRefused'],
  ['service_endpoint_faults_total', { fault: 'reset' }, 'resets'],
  ['service_endpoint_faults_total', { fault: 'late' }, 'lateAnswers'],
  ['service_dead_connections_total', { side: 'client' }, 'deadClients'],
  ['service_dead_connections_total', { side: 'endpoint' }, 'deadEndpoints'],
  ['service_bytes_total', { direction: 'to_endpoint' }, 'bytesToEndpoint'],
  ['service_bytes_total', { direction: 'to_client' }, 'bytesToClient'],
] as const

/** Turns the counts of workers into metrics. */
export class TrafficMeter {
  readonly #meter: Meter
  /** By service port: the endpoints that have their own numbers, and open connections. */
  readonly #services = new Map<string, ServiceNumbers>()
  #pairs = 0

  constructor(meter: Meter) {
    this.#meter = meter
  }

  record(counts: readonly ListenerCounts[]): void {
    for (const { key, active, refused, endpoints, left } of counts) {
      const { service, protocol } = namesIn(key)
      const name = `${service}/${protocol}`
      const fresh: ServiceNumbers = { endpoints: new Map(), active: new Map() }
      const numbers = this.#services.get(name) ?? fresh
      this.#services.set(name, numbers)
      numbers.active.set(key, active)
      const open = [...numbers.active.values()].reduce((sum, one) => sum + one, 0)
      this.#meter.gauge('service_active_connections', { service, protocol }, open)
      this.#count('service_refused_connections_total', { service, protocol }, refused)
      for (const counted of endpoints) {
        const endpoint = this.#labelOf(numbers, counted.endpoint, key)
        const labels = { service, protocol, endpoint }
        for (const [name, more, field] of counters) {
          this.#count(name, { ...labels, ...more }, counted[field])
        }
        for (const seconds of counted.dialSeconds) {
          this.#meter.observe('service_dial_duration_seconds', labels, seconds)
        }
      }
      for (const endpoint of left) this.#leave(numbers, endpoint, key)
    }
  }

  /** Listeners ended with their connections, and nobody reports them any more. */
  lost(listenerKeys: readonly string[]): void {
    this.record(
      listenerKeys.map((key) => ({ key, active: 0, refused: 0, endpoints: [], left: [] })),
    )
  }

  /** A listener was closed for good. The last one removes the numbers of its service port. */
  closed(listenerKey: string): void {
    const { service, protocol } = namesIn(listenerKey)
    const name = `${service}/${protocol}`
    const numbers = this.#services.get(name)
    numbers?.active.delete(listenerKey)
    if (!numbers) return
    if (numbers.active.size > 0) {
      for (const endpoint of numbers.endpoints.keys()) this.#leave(numbers, endpoint, listenerKey)
      return
    }
    this.#pairs -= numbers.endpoints.size
    this.#services.delete(name)
    this.#meter.forget({ service, protocol })
  }

  #count(name: string, labels: Readonly<Record<string, string>>, by: number): void {
    if (by > 0) this.#meter.count(name, labels, by)
  }

  #labelOf({ endpoints }: ServiceNumbers, endpoint: string, listenerKey: string): string {
    const listeners = endpoints.get(endpoint)
    if (listeners) listeners.add(listenerKey)
    else if (this.#pairs >= maxPairs) return 'other'
    else {
      this.#pairs++
      endpoints.set(endpoint, new Set([listenerKey]))
    }
    return endpoint
  }

  /** The endpoint left a listener. The last one removes the numbers of the endpoint. */
  #leave({ endpoints }: ServiceNumbers, endpoint: string, listenerKey: string): void {
    const listeners = endpoints.get(endpoint)
    if (listeners?.delete(listenerKey) !== true || listeners.size > 0) return
    this.#pairs--
    endpoints.delete(endpoint)
    const { service, protocol } = namesIn(listenerKey)
    this.#meter.forget({ service, protocol, endpoint })
  }
}

interface ServiceNumbers {
  /** By endpoint with numbers of its own: the listeners that have counted them. */
  readonly endpoints: Map<string, Set<string>>
  /** By listener. */
  readonly active: Map<string, number>
}

/** The parts of a listener's key, `FAMILY namespace/name:port/PROTOCOL LIST`. */
function namesIn(key: string): { readonly service: string; readonly protocol: string } {
  const servicePort = key.split(' ')[1] ?? key
  const slash = servicePort.lastIndexOf('/')
  return { service: servicePort.slice(0, slash), protocol: servicePort.slice(slash + 1) }
}
