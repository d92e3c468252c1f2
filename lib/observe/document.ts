import { fullName, type MetricSpec } from './metric-spec.js'
import { ownMetrics } from './metrics-own.js'
import { commonMetrics, componentMetrics, kernelModeMetrics } from './metrics-upstream.js'

const introduction = `# Metrics

<!-- Written by \`npm run docs\` from lib/observe/metrics-*.ts; change it there. -->

On \`--metrics-bind-address\` (127.0.0.1:10249): \`/metrics\` in the text format of Prometheus,
\`/metrics/slis\` with the health checks. What kube-proxy 1.36 has too has the same name, type,
labels and buckets, so that dashboards and alerts keep working. A metric that belongs to some modes
only is missing in the others.
`

/** docs/metrics.md. */
export function metricsMarkdown(): string {
  return [
    introduction,
    '\n## As in kube-proxy\n',
    table([...commonMetrics, ...kernelModeMetrics]),
    '\n## Only here\n\n`service` is `namespace/name:port`, `endpoint` is `address:port`.\nOf a metric with 10,000 such series, further ones are summed under `other`.\n',
    table(ownMetrics),
    '\n## As in every Kubernetes component\n',
    table(componentMetrics),
    '\nAnd of the process itself: `process_*` and `nodejs_*` (kube-proxy has `go_*` instead).\n',
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
