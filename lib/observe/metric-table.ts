import type { MetricSpec } from './metric-spec.js'
import { ownMetrics } from './metrics-own.js'
import { commonMetrics, componentMetrics, kernelModeMetrics } from './metrics-upstream.js'

/** Every metric there is, but for those of the process itself (process_*, nodejs_*). */
export const metricTable: readonly MetricSpec[] = [
  ...commonMetrics,
  ...kernelModeMetrics,
  ...ownMetrics,
  ...componentMetrics,
]
