import type { ModeName } from '../modes/registry.js'

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

/** The name on /metrics. */
export function fullName(spec: MetricSpec): string {
  return spec.bare === true ? spec.name : `kubeproxy_${spec.name}`
}
