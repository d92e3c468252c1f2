import { fullName, type MetricSpec } from '../../lib/observe/metric-spec.js'
import { ownMetrics } from '../../lib/observe/metrics-own.js'
import {
  commonMetrics,
  componentMetrics,
  kernelModeMetrics,
} from '../../lib/observe/metrics-upstream.js'

const introduction = `# Metrics

<!-- Written by \`npm run docs\` from lib/observe/metrics-*.ts; change it there. -->

The server at \`--metrics-bind-address\` (127.0.0.1:10249) answers \`/metrics\` in the text format of
Prometheus, and \`/metrics/slis\` with the health checks. Metrics that kube-proxy 1.36 also has keep
their name, type, labels and buckets, so that dashboards and alerts keep working. A metric of some
modes is missing in the other modes.
`

/** docs/metrics.md. */
export function metricsMarkdown(): string {
  return [
    introduction,
    '\n## As in kube-proxy\n',
    table([...commonMetrics, ...kernelModeMetrics]),
    '\n## Only here\n\n`service` is `namespace/name:port`, `endpoint` is `address:port`.\nA metric has at most 10,000 such series. Further ones are summed under `other`.\n',
    table(ownMetrics),
    '\n## As in every Kubernetes component\n',
    table(componentMetrics),
    '\nThe metrics of the process itself are `process_*` and `nodejs_*` (kube-proxy has `go_*` instead).\n',
  ].join('')
}

function table(specs: readonly MetricSpec[]): string {
  const lines = [
    ['Name', 'Type', 'Labels', 'Modes', 'Meaning'],
    ['---', '---', '---', '---', '---'],
    ...specs.map((spec) => [
      `\`${fullName(spec)}\``,
      spec.type,
      spec.labels.map((label) => `\`${label}\``).join(', '),
      spec.modes?.join(', ') ?? 'all',
      `${spec.help}.`,
    ]),
  ]
  return `\n${lines.map((cells) => `| ${cells.join(' | ')} |`).join('\n')}\n`
}
