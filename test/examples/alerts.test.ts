/** Every alert with series that must raise it, and with series that must not. */
import { readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import t from 'tap'
import { parse, stringify } from 'yaml'
import { runCommand } from '../support/run-command.js'

const file = fileURLToPath(
  new URL('../../../examples/kubernetes/components/monitoring/alerts.yaml', import.meta.url),
)
const alerts = parse(await readFile(file, 'utf8')) as {
  readonly spec: { readonly groups: readonly { readonly rules: readonly { alert: string }[] }[] }
}
const promtool = await runCommand('promtool', ['--version']).catch(() => undefined)
const skip = promtool?.code === 0 ? false : "needs promtool, of Debian's package prometheus"

/** A value for each minute, in the notation of promtool: `0+60x10` is 0, 60 … 600. */
type Series = Readonly<Record<string, string>>

interface Case {
  readonly alert: string
  readonly what: string
  readonly series: Series
  /** The minute at which the alert is evaluated. */
  readonly at: number
  readonly fires: boolean
}

const queued = 'kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family="IPv4"}'
const synced = 'kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv4"}'
const failures = 'kubeproxy_sync_failures_total{ip_family="IPv4"}'
const started = 'process_start_time_seconds{job="kube-proxy",instance="a"}'
const malformed = 'kubeproxy_malformed_objects_total{kind="Service"}'
const refused = 'kubeproxy_service_refused_connections_total{service="d/s",protocol="TCP"}'
const dropped = 'kubeproxy_service_dropped_connections_total{service="d/s",protocol="TCP"}'
const unheard = 'kubeproxy_userspace_listen_failures_total{reason="EADDRINUSE"}'
const lost = 'kubeproxy_flow_events_lost_total{node="n"}'
const unsent = 'kubeproxy_flow_export_lines_lost_total{node="n"}'
const mode = (runs: string, requested = 'nftables') =>
  `kubeproxy_mode_active{requested="${requested}",mode="${runs}"}`
const latency = (bound: string) =>
  `kubeproxy_network_programming_duration_seconds_bucket{node="n",le="${bound}"}`

const cases: readonly Case[] = [
  ...both('KubeProxyDown', 10, {
    'no answer': [true, { 'up{job="kube-proxy"}': '0x20' }],
    'an answer': [false, { 'up{job="kube-proxy"}': '1x20' }],
  }),
  ...both('KubeProxyBehind', 15, {
    'a busy cluster whose syncs fail': [true, { [queued]: '0+60x20', [synced]: '0 60 60x18' }],
    'a single change that never arrives': [
      true,
      { [queued]: '0 70 70x18', [synced]: '0 60 60x18' },
    ],
    'a busy cluster whose syncs work': [false, { [queued]: '0+60x20', [synced]: '-2+60x20' }],
    'a quiet cluster': [false, { [queued]: '60x20', [synced]: '61x20' }],
    'a change after a quiet time': [false, { [queued]: '60x14 900', [synced]: '61x15' }],
  }),
  ...both('KubeProxySyncFails', 18, {
    'a failure a minute': [true, { [failures]: '0+1x20' }],
    'a single failure': [false, { [failures]: '0x10 1x10' }],
  }),
  ...both('KubeProxySlow', 40, {
    'changes that take a minute': [
      true,
      { [latency('10')]: '0+1x50', [latency('60')]: '0+50x50', [latency('+Inf')]: '0+50x50' },
    ],
    'changes that take a second': [
      false,
      { [latency('1')]: '0+50x50', [latency('60')]: '0+50x50', [latency('+Inf')]: '0+50x50' },
    ],
  }),
  ...both('KubeProxyNeverSynced', 10, {
    'no first sync': [true, { [started]: '0x20' }],
    'a first sync': [
      false,
      { [started]: '0x20', 'kubeproxy_first_sync_seconds{instance="a",ip_family="IPv4"}': '2x20' },
    ],
  }),
  ...both('KubeProxyFellBack', 10, {
    'another mode than wanted': [true, { [mode('iptables')]: '1x20' }],
    'another mode than ebpf': [true, { [mode('nftables', 'ebpf')]: '1x20' }],
    'another mode than iptables, which no mode means': [true, { [mode('userspace', '')]: '1x20' }],
    'the wanted mode': [false, { [mode('nftables')]: '1x20' }],
    'the mode that no mode means': [false, { [mode('iptables', '')]: '1x20' }],
  }),
  ...both('KubeProxyMalformedObjects', 10, {
    'a malformed object': [true, { [malformed]: '0x5 1x15' }],
    'none since long': [false, { [malformed]: '1x20' }],
  }),
  ...both('KubeProxyRefusesConnections', 20, {
    'two refused a second': [true, { [refused]: '0+120x30' }],
    'one refused a minute': [false, { [refused]: '0+1x30' }],
  }),
  ...both('KubeProxyDropsConnections', 20, {
    'two dropped a second': [true, { [dropped]: '0+120x30' }],
    'one dropped a minute': [false, { [dropped]: '0+1x30' }],
  }),
  ...both('KubeProxyLosesFlows', 30, {
    'losses that go on': [true, { [lost]: '0+1x40' }],
    'a single burst': [false, { [lost]: '0x5 1x35' }],
  }),
  ...both('KubeProxyLosesExports', 30, {
    'losses that go on': [true, { [unsent]: '0+9x40' }],
    'a short outage': [false, { [unsent]: '0x5 40x35' }],
  }),
  ...both('KubeProxyListenersMissing', 30, {
    'a port that stays taken': [true, { [unheard]: '0+1x40' }],
    'a port that was taken once': [false, { [unheard]: '0x5 1x35' }],
  }),
]

function both(
  alert: string,
  at: number,
  series: Readonly<Record<string, readonly [fires: boolean, series: Series]>>,
): readonly Case[] {
  return Object.entries(series).map(([what, [fires, of]]) => ({
    alert,
    what,
    at,
    fires,
    series: of,
  }))
}

t.test('every alert has a case that raises it, and a case that does not', (t) => {
  for (const { alert } of alerts.spec.groups.flatMap(({ rules }) => rules)) {
    const outcomes = new Set(cases.filter((one) => one.alert === alert).map(({ fires }) => fires))
    t.equal(outcomes.size, 2, alert)
  }
  t.end()
})

for (const { alert, what, series, at, fires } of cases) {
  t.test(`${alert}: ${what} ${fires ? 'raises it' : 'does not'}`, { skip }, async (t) => {
    const folder = t.testdir({})
    await writeFile(join(folder, 'rules.yaml'), stringify(alerts.spec))
    const test = {
      rule_files: ['rules.yaml'],
      evaluation_interval: '1m',
      tests: [
        {
          interval: '1m',
          input_series: Object.entries(series).map(([name, values]) => ({ series: name, values })),
          promql_expr_test: [
            {
              expr: `count(ALERTS{alertname="${alert}",alertstate="firing"}) or vector(0)`,
              eval_time: `${at}m`,
              exp_samples: [{ labels: '{}', value: fires ? 1 : 0 }],
            },
          ],
        },
      ],
    }
    await writeFile(join(folder, 'test.yaml'), stringify(test))
    const args = ['test', 'rules', join(folder, 'test.yaml')]
    const { code, stdout, stderr } = await runCommand('promtool', args)
    t.equal(code, 0, code === 0 ? 'as expected' : `${stdout}${stderr}`)
  })
}
