import type { ModeName } from '../config/config.js'

/** One metric: its name, its labels and its documentation. */
export interface MetricSpec {
  /** The name that a Meter takes. On /metrics it has the prefix `kubeproxy_`, unless `bare`. */
  readonly name: string
  readonly type: 'counter' | 'gauge' | 'histogram'
  readonly labels: readonly string[]
  readonly help: string
  /** Modes that have it; undefined: all. */
  readonly modes?: readonly ModeName[]
  readonly buckets?: readonly number[]
  /** Whether the name on /metrics has no prefix. */
  readonly bare?: boolean
}

/** What only some metrics have. */
type Extra = Pick<MetricSpec, 'modes' | 'buckets' | 'bare'>

const metricOf =
  (type: MetricSpec['type']) =>
  (name: string, labels: readonly string[], help: string, extra: Extra = {}): MetricSpec => ({
    ...{ name, type, labels, help },
    ...extra,
  })

export const counter = metricOf('counter')
export const gauge = metricOf('gauge')
export const histogram = metricOf('histogram')

export function fullName(spec: MetricSpec): string {
  return spec.bare === true ? spec.name : `kubeproxy_${spec.name}`
}
