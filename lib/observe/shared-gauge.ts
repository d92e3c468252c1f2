import type { Meter } from '../modes/mode.js'
import type { Labels } from './service-series.js'

const shared = 'service_active_connections'

/**
 * Meters for two callers that count different connections of the same Services. The gauge of open
 * connections shows the sum of both. Counters add up by themselves.
 */
export function sharedGauge(meter: Meter): readonly [Meter, Meter] {
  const values: readonly [Map<string, number>, Map<string, number>] = [new Map(), new Map()]
  const keyOf = ({ service = '', protocol = '' }: Labels) => `${service}/${protocol}`
  const share = (own: Map<string, number>): Meter => ({
    count: (name, labels, by) => meter.count(name, labels, by),
    observe: (name, labels, value) => meter.observe(name, labels, value),
    gauge: (name, labels, value) => {
      if (name !== shared) {
        meter.gauge(name, labels, value)
        return
      }
      const key = keyOf(labels)
      own.set(key, value)
      meter.gauge(name, labels, (values[0].get(key) ?? 0) + (values[1].get(key) ?? 0))
    },
    forget: (labels) => {
      if (!('endpoint' in labels)) for (const each of values) each.delete(keyOf(labels))
      meter.forget(labels)
    },
  })
  return [share(values[0]), share(values[1])]
}
