import type { Meter } from '../../modes/mode.js'
import type { Labels } from '../service-series.js'

const openConnections = 'service_active_connections'

/** What one caller has counted of a service port. */
interface Counted {
  open: number
  readonly endpoints: Set<string>
}

/**
 * Meters for two callers that count different connections of the same Services. The gauge of open
 * connections shows the sum of both. Counters add up by themselves. What one of them forgets stays
 * while the other one counts at it.
 */
export function sharedMeters(meter: Meter): readonly [Meter, Meter] {
  const [one, other] = [new Map<string, Counted>(), new Map<string, Counted>()]
  return [shareOf(meter, one, other), shareOf(meter, other, one)]
}

const keyOf = ({ service = '', protocol = '' }: Labels) => `${service}/${protocol}`

function shareOf(
  meter: Meter,
  own: Map<string, Counted>,
  others: ReadonlyMap<string, Counted>,
): Meter {
  const noted = (labels: Labels): Counted => {
    const counted = own.get(keyOf(labels)) ?? { open: 0, endpoints: new Set() }
    if (labels['service'] !== undefined) own.set(keyOf(labels), counted)
    if (labels['endpoint'] !== undefined) counted.endpoints.add(labels['endpoint'])
    return counted
  }
  const forgetEndpoint = (labels: Labels, endpoint: string) => {
    own.get(keyOf(labels))?.endpoints.delete(endpoint)
    const isCounted = others.get(keyOf(labels))?.endpoints.has(endpoint)
    if (isCounted !== true) meter.forget({ ...labels, endpoint })
  }
  return {
    count: (name, labels, by) => {
      noted(labels)
      meter.count(name, labels, by)
    },
    observe: (name, labels, value) => {
      noted(labels)
      meter.observe(name, labels, value)
    },
    gauge: (name, labels, value) => {
      const counted = noted(labels)
      if (name === openConnections) counted.open = value
      const more = name === openConnections ? (others.get(keyOf(labels))?.open ?? 0) : 0
      meter.gauge(name, labels, value + more)
    },
    forget: (labels) => {
      if (labels['endpoint'] !== undefined) {
        forgetEndpoint(labels, labels['endpoint'])
        return
      }
      const kept = others.get(keyOf(labels))
      for (const endpoint of kept ? (own.get(keyOf(labels))?.endpoints ?? []) : []) {
        forgetEndpoint(labels, endpoint)
      }
      own.delete(keyOf(labels))
      if (kept) meter.gauge(openConnections, labels, kept.open)
      else meter.forget(labels)
    },
  }
}
