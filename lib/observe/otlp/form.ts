import type { FlowRecord } from '../flows/answer.js'

/**
 * OTLP 1 as JSON, as far as it is needed here. In OTLP, whole numbers of 64 bits are texts, and
 * fields that are not known may be left out.
 */

/** The sender, which every batch names. */
export interface Sender {
  readonly node: string
  readonly mode: string
  readonly version: string
}

/** One number of a Service at one time. */
export interface Point {
  /** Index of `exported`. */
  readonly metric: number
  readonly labels: Readonly<Record<string, string>>
  readonly value: number
  /** The time since which it is counted, and the time of the reading, in ms since 1970. */
  readonly since: number
  readonly at: number
}

/** Our metrics and their names in OpenTelemetry. Prometheus turns those back into our names. */
export const exported: readonly ExportedMetric[] = [
  { own: 'service_connections_total', name: 'connections', unit: '{connection}', grows: true },
  { own: 'service_active_connections', name: 'active_connections', unit: '{connection}' },
  {
    own: 'service_refused_connections_total',
    ...{ name: 'refused_connections', unit: '{connection}', grows: true },
  },
  {
    own: 'service_dropped_connections_total',
    ...{ name: 'dropped_connections', unit: '{connection}', grows: true },
  },
  { own: 'service_bytes_total', name: 'bytes', unit: 'By', grows: true },
  { own: 'service_packets_total', name: 'packets', unit: '{packet}', grows: true },
]

interface ExportedMetric {
  readonly own: string
  readonly name: string
  readonly unit: string
  /** True for a number that only grows. Other numbers go up and down. */
  readonly grows?: true
}

export function logsOf(sender: Sender, flows: readonly FlowRecord[], now: number): object {
  const observedTimeUnixNano = nanosOf(now)
  const logRecords = flows.map((flow) => ({
    timeUnixNano: nanosOf(Date.parse(flow.time)),
    observedTimeUnixNano,
    ...severityOf(flow),
    body: { stringValue: bodyOf(flow) },
    attributes: attributesOf(flow),
  }))
  return {
    resourceLogs: [{ ...resourceOf(sender), scopeLogs: [{ ...scopeOf(sender), logRecords }] }],
  }
}

export function metricsOf(sender: Sender, points: readonly Point[]): object {
  const metrics = exported.flatMap(({ name, unit, grows: isMonotonic = false }, index) => {
    const own = points.filter((point) => point.metric === index)
    if (own.length === 0) return []
    const dataPoints = own.map(({ labels, value, since, at }) => ({
      attributes: Object.entries(labels).map(([key, text]) => attribute(key, text)),
      startTimeUnixNano: nanosOf(since),
      timeUnixNano: nanosOf(at),
      asInt: String(Math.round(value)),
    }))
    const sum = { aggregationTemporality: cumulative, isMonotonic, dataPoints }
    return [{ name: `kubeproxy.service.${name}`, unit, sum }]
  })
  return {
    resourceMetrics: [{ ...resourceOf(sender), scopeMetrics: [{ ...scopeOf(sender), metrics }] }],
  }
}

/** AGGREGATION_TEMPORALITY_CUMULATIVE */
const cumulative = 2

/** As a text, because a double has no room for nanoseconds since 1970. */
const nanosOf = (ms: number) => `${Math.round(ms)}000000`

function resourceOf({ node, mode, version }: Sender) {
  const attributes = [
    attribute('service.name', 'kube-proxy'),
    attribute('service.version', version),
    attribute('k8s.node.name', node),
    attribute('kubeproxy.mode', mode),
  ]
  return { resource: { attributes } }
}

const scopeOf = ({ version }: Sender) => ({ scope: { name: 'kube-proxy-ts', version } })

/** INFO, and WARN for a connection that did not reach an endpoint. */
const severityOf = ({ verdict }: FlowRecord) =>
  verdict === 'forwarded'
    ? { severityNumber: 9, severityText: 'INFO' }
    : { severityNumber: 13, severityText: 'WARN' }

function bodyOf({ verdict, event, client, clientPod, service }: FlowRecord): string {
  return `${verdict}: ${clientPod || client || 'a client'} to ${service}, ${event}`
}

/** The fields of the stream under their names. Empty fields are left out. */
function attributesOf({ time: _, ...fields }: FlowRecord): readonly object[] {
  return Object.entries(fields).flatMap(([key, value]: [string, string | number]) =>
    value === '' ? [] : [attribute(`flow.${key}`, value)],
  )
}

function attribute(key: string, value: string | number): object {
  return {
    key,
    value:
      typeof value === 'number' ? { intValue: String(Math.round(value)) } : { stringValue: value },
  }
}
