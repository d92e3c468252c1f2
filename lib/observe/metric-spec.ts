import type { ModeName } from '../modes/registry.js'

/** One metric, as /metrics, docs/metrics.md and whoever counts see it. */
export interface MetricSpec {
  /** Without the prefix `kubeproxy_`, unless `bare`. This is the name that a Meter takes. */
  readonly name: string
  readonly type: 'counter' | 'gauge' | 'histogram'
  readonly labels: readonly string[]
  readonly help: string
  /** Modes that have it; undefined: all. */
  readonly modes?: readonly ModeName[]
  readonly buckets?: readonly number[]
  /** The name stands as it is, without prefix. */
  readonly bare?: boolean
}

/** The name on /metrics. */
export function fullName(spec: MetricSpec): string {
  return spec.bare === true ? spec.name : `kubeproxy_${spec.name}`
}
