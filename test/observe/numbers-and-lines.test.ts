import t from 'tap'
import { ServiceSeries } from '../../lib/observe/service-series.js'
import { readFileSync, readdirSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { createLogger, levelOf } from '../../lib/observe/logger.js'
import { formatLine } from '../../lib/observe/log-text.js'
import { fullName } from '../../lib/observe/metric-spec.js'
import { repeatFilter } from '../../lib/observe/object-observer.js'
import { watchedSink } from '../../lib/sources/source.js'
import { objectLog } from '../../lib/observe/object-observer.js'
import { Metrics, metricTable } from '../../lib/observe/metrics.js'

t.test('section 15: metrics have the names, types, labels and buckets of kube-proxy', async (t) => {
  const metrics = new Metrics({ mode: 'iptables', process: false })
  metrics.observe('sync_proxy_rules_duration_seconds', { ip_family: 'IPv4' }, 0.0015)
  metrics.observe('network_programming_duration_seconds', { ip_family: 'IPv4' }, 0.3)
  metrics.gauge('sync_proxy_rules_no_local_endpoints_total', labels('internal'), 2)
  metrics.count('proxy_healthz_total', { code: '200' }, 3)
  metrics.count('rest_client_requests_total', { code: '200', method: 'GET', host: 'h' })
  const { body, type } = await metrics.page()
  t.match(type, /^text\/plain; version=0\.0\.4/)
  for (const line of [
    '# TYPE kubeproxy_sync_proxy_rules_duration_seconds histogram',
    'kubeproxy_sync_proxy_rules_duration_seconds_bucket{le="0.001",ip_family="IPv4"} 0',
    'kubeproxy_sync_proxy_rules_duration_seconds_bucket{le="0.002",ip_family="IPv4"} 1',
    'kubeproxy_sync_proxy_rules_duration_seconds_bucket{le="16.384",ip_family="IPv4"} 1',
    'kubeproxy_network_programming_duration_seconds_bucket{le="0.5",ip_family="IPv4"} 1',
    'kubeproxy_network_programming_duration_seconds_bucket{le="59",ip_family="IPv4"} 1',
    'kubeproxy_network_programming_duration_seconds_bucket{le="115",ip_family="IPv4"} 1',
    'kubeproxy_network_programming_duration_seconds_bucket{le="300",ip_family="IPv4"} 1',
    'kubeproxy_sync_proxy_rules_no_local_endpoints_total{traffic_policy="internal",ip_family="IPv4"} 2',
    'kubeproxy_proxy_healthz_total{code="200"} 3',
    'rest_client_requests_total{code="200",method="GET",host="h"} 1',
  ]) {
    t.ok(body.includes(`${line}\n`), line)
  }
  t.equal(body.match(/kubeproxy_sync_proxy_rules_duration_seconds_bucket/g)?.length, 16)
  t.equal(body.match(/kubeproxy_network_programming_duration_seconds_bucket/g)?.length, 81)
  t.match(body, /kubeproxy_sync_proxy_rules_iptables_total/)
  t.notMatch(body, /nftables|process_/, 'what belongs to other modes is not there')
})

function labels(policy: string) {
  return { traffic_policy: policy, ip_family: 'IPv4' }
}

t.test('a page of thousands of series leaves turns to health checks and syncs', async (t) => {
  const metrics = new Metrics({ mode: 'nftables', process: false })
  for (let index = 0; index < 5_000; index++) {
    const labels = { service: `default/web-${index}:http`, protocol: 'TCP', endpoint: '' }
    for (const { name, type } of metricTable) if (type === 'gauge') metrics.gauge(name, labels, 1)
  }
  let turns = 0
  const count = () => {
    turns++
    again = setImmediate(count)
  }
  let again = setImmediate(count)
  const { body } = await metrics.page()
  clearImmediate(again)
  t.match(body, 'service="default/web-4999:http"')
  t.ok(turns >= 2, `${turns} turns`)
})

t.test('wrong metrics of a mode do not break a sync', async (t) => {
  const unknown: string[] = []
  const metrics = new Metrics({ mode: 'ipvs', onUnknown: (name) => unknown.push(name) })
  metrics.count('no_such_metric', {})
  metrics.count('proxy_healthz_total', { strange: 'x' })
  metrics.gauge('proxy_healthz_total', {}, 5)
  metrics.count('sync_proxy_rules_nftables_sync_failures_total', { ip_family: 'IPv4' })
  metrics.count('service_connections_total', { service: 'a"b\n', protocol: 'TCP' })
  const { body } = await metrics.page()
  t.same(unknown, ['no_such_metric'])
  t.ok(body.includes('kubeproxy_proxy_healthz_total{code=""} 1\n'))
  t.ok(
    body.includes('{service="a\\"b\\n",protocol="TCP",endpoint=""} 1\n'),
    'hostile labels are escaped',
  )
  t.match(body, /process_resident_memory_bytes \d+/)
})

t.test('the series of a removed service port are removed', async (t) => {
  const metrics = new Metrics({ mode: 'userspace', process: false })
  const of = (service: string, endpoint: string) => ({ service, protocol: 'TCP', endpoint })
  metrics.count('service_connections_total', of('d/a:p', '10.0.0.1:80'))
  metrics.count('service_connections_total', of('d/a:p', '10.0.0.2:80'))
  metrics.count('service_connections_total', of('d/b', '10.0.0.1:80'))
  metrics.observe('service_dial_duration_seconds', of('d/a:p', '10.0.0.1:80'), 0.1)
  metrics.forget({ service: 'd/a:p', protocol: 'TCP', endpoint: '10.0.0.2:80' })
  t.match((await metrics.page()).body, /d\/a:p/)
  metrics.forget({ service: 'd/a:p', protocol: 'TCP' })
  const { body } = await metrics.page()
  t.notMatch(body, /d\/a:p/)
  t.match(body, /service_connections_total\{service="d\/b",protocol="TCP",endpoint=/)
})

t.test('the series of an endpoint are found without a look at those of others', async (t) => {
  const series = new ServiceSeries(100)
  let looks = 0
  const labelsOf = (endpoint: string) => ({
    get service() {
      looks++
      return 'd/a'
    },
    endpoint,
  })
  for (const endpoint of ['1', '2', '3']) series.admit('m', labelsOf(endpoint), false)
  looks = 0
  const taken = series.take({ service: 'd/a', endpoint: '2' })
  t.same(
    taken.map(({ labels }) => labels['endpoint']),
    ['2'],
  )
  t.equal(looks, 1)
  t.equal(series.take({ service: 'd/a' }).length, 2)
})

t.test(
  'beyond the bound, open connections are added up, too, and go with their Service',
  async (t) => {
    const metrics = new Metrics({ mode: 'userspace', process: false, maxServiceSeries: 1 })
    const gauge = (service: string, value: number) =>
      metrics.gauge('service_active_connections', { service, protocol: 'TCP' }, value)
    const values = async () => {
      const all = await metrics.readSeries(['service_active_connections'])
      return all.map(({ label, value }) => `${label('service')} ${value}`)
    }
    for (const [service, value] of [
      ['d/a', 1],
      ['d/b', 5],
      ['d/c', 7],
      ['d/b', 2],
    ] as const) {
      gauge(service, value)
    }
    t.same(await values(), ['d/a 1', 'other 9'])
    metrics.forget({ service: 'd/c', protocol: 'TCP' })
    t.same(await values(), ['d/a 1', 'other 2'])
    metrics.forget({ service: 'd/a', protocol: 'TCP' })
    gauge('d/b', 3)
    gauge('d/d', 4)
    t.same(await values(), ['other 3', 'd/d 4'], 'there is room for one more')
  },
)

t.test('the number of series is bounded, and the rest is added up', async (t) => {
  const metrics = new Metrics({ mode: 'userspace', process: false, maxServiceSeries: 2 })
  const count = (service: string, endpoint: string) =>
    metrics.count('service_connections_total', { service, protocol: 'TCP', endpoint })
  for (const service of ['d/a', 'd/b', 'd/c', 'd/d', 'd/a']) count(service, '10.0.0.1:80')
  metrics.count('service_refused_connections_total', { service: 'd/c', protocol: 'UDP' })
  const lines = async () => {
    const { body } = await metrics.page()
    return body.split('\n').filter((line) => /^kubeproxy_service_(conn|ref)/.test(line))
  }
  const line = (service: string, endpoint: string, value: number) =>
    `kubeproxy_service_connections_total{service="${service}",protocol="TCP",endpoint="${endpoint}"} ${value}`
  t.same(await lines(), [
    line('d/a', '10.0.0.1:80', 2),
    line('d/b', '10.0.0.1:80', 1),
    line('other', 'other', 2),
    'kubeproxy_service_refused_connections_total{service="d/c",protocol="UDP"} 1',
  ])
  metrics.forget({ service: 'd/b', protocol: 'UDP' })
  metrics.forget({ service: 'd/unknown', protocol: 'TCP' })
  count('d/e', '10.0.0.1:80')
  metrics.forget({ service: 'd/b', protocol: 'TCP' })
  count('d/f', '10.0.0.1:80')
  t.same((await lines()).slice(0, 3), [
    line('d/a', '10.0.0.1:80', 2),
    line('other', 'other', 3),
    line('d/f', '10.0.0.1:80', 1),
  ])
})

t.test('every metric has its own name and an explanation', async (t) => {
  const names = metricTable.map(fullName)
  t.equal(new Set(names).size, names.length)
  for (const spec of metricTable) {
    t.ok(spec.help.length > 10 && !spec.help.endsWith('.'), spec.name)
    t.equal(spec.type === 'histogram', spec.buckets !== undefined, `${spec.name}: buckets`)
  }
})

t.test('every metric of the table is used in the code', async (t) => {
  const lib = fileURLToPath(new URL('../../../lib/', import.meta.url))
  const sources = readdirSync(lib, { recursive: true, encoding: 'utf8' })
    .filter((file) => file.endsWith('.ts') && !/metrics-(own|upstream)/.test(file))
    .map((file) => readFileSync(join(lib, file), 'utf8'))
    .join('\n')
  // These names are built at run time, for example `proxy_${type}_total`.
  const built = [
    /^proxy_(healthz|livez)_total$/,
    /^sync_(full|partial)_proxy_rules_duration_seconds$/,
  ]
  // No cleanup can fail by itself, because stale chains go in the transaction of the sync.
  const never = ['sync_proxy_rules_nftables_cleanup_failures_total']
  for (const { name } of metricTable) {
    if (never.includes(name) || built.some((pattern) => pattern.test(name))) continue
    t.ok(sources.includes(`'${name}'`), name)
  }
})

t.test('logs are JSON or one line of text', async (t) => {
  const lines: string[] = []
  const write = (line: string) => lines.push(line)
  const json = createLogger({ format: 'json', verbosity: 0, isTerminal: false, write })
  json.info({ mode: 'ipvs', ms: 3 }, 'synced')
  json.debug({}, 'hidden')
  t.match(JSON.parse(lines[0]!), { level: 'info', mode: 'ipvs', ms: 3, msg: 'synced' })
  t.equal(lines.length, 1)
  const text = createLogger({ format: 'text', verbosity: 4, isTerminal: false, write })
  text.warn({ service: 'a b', ips: ['1.2.3.4'] }, 'Using iptables Proxier')
  t.match(
    lines[1],
    /^\d{4}-\d\d-\d\dT[\d:.]+Z WARN {2}Using iptables Proxier service="a b" ips=.*1\.2\.3\.4.*\n$/,
  )
  text.debug({}, 'seen')
  t.match(lines[2], /DEBUG seen/)
  text.error({ err: new Error('why') }, 'failed')
  t.match(lines.pop(), /ERROR failed err="Error: why\\n +at .*\n$/, 'a stack, in one line')
  text.error({ err: { message: 'no stack' }, list: [], nothing: null }, 'failed')
  t.match(lines.pop(), /failed err="?no stack"? list=\[\] nothing=null\n$/)
  text.setVerbosity(2)
  text.debug({}, 'hidden')
  t.equal(lines.length, 3)
})

t.test('a hostile name stays on its line of the log, without terminal escapes', async (t) => {
  const line = formatLine(
    JSON.stringify({
      level: 'error',
      time: '2026-01-02T03:04:05.678Z',
      msg: 'bad\nname \u001b[2J',
      name: 'x\u001b]0;t\u0007\r\nINFO forged \u202e',
    }),
    true,
  )
  t.equal(line.indexOf('\n'), line.length - 1)
  t.ok(line.startsWith('03:04:05.678 \u001b[31mERROR\u001b[0m bad\\nname \\u001b[2J name="x'))
  t.notOk(/[\u001b\u0007\r\u202e]/.test(line.slice(line.indexOf('bad'))))
})

t.test('-v 0 to 3 logs events, from 4 on details, from 6 on everything', async (t) => {
  t.same([0, 2, 3, 4, 5, 6, 10].map(levelOf), [
    'info',
    'info',
    'info',
    'debug',
    'debug',
    'trace',
    'trace',
  ])
})

t.test('a failure that repeats is logged again after a while', async (t) => {
  const clock = { now: 0 }
  const isNew = repeatFilter({ forMs: 30_000, now: () => clock.now })
  t.same([isNew('a'), isNew('a'), isNew('b')], [true, false, true])
  clock.now = 29_999
  t.notOk(isNew('a'))
  clock.now = 30_000
  t.ok(isNew('a'), 'it still fails, so it is logged again')
  t.notOk(isNew('a'))
})

t.test('with -v 4 each object is logged before it is used, and passed on as it is', async (t) => {
  const heard: string[] = []
  const note =
    (what: string) =>
    (...given: unknown[]) =>
      heard.push(`${what} ${JSON.stringify(given)}`)
  const log = {
    ...{ info: note('info'), warn: note('warn'), error: note('error') },
    debug: (fields: object, message: string) => heard.push(`${message} ${JSON.stringify(fields)}`),
  }
  const sink = watchedSink(
    {
      upsert: note('upsert'),
      remove: note('remove'),
      synced: note('synced'),
      failed: note('failed'),
    },
    [objectLog(log)],
  )
  sink.upsert('Service', { metadata: { name: 'web', namespace: 'default', resourceVersion: '7' } })
  sink.upsert('Service', 'no object')
  sink.remove('EndpointSlice', 'default', 'web-1')
  sink.synced('Service')
  sink.failed('x')
  t.same(heard, [
    'object received {"kind":"Service","namespace":"default","name":"web","resourceVersion":"7"}',
    'upsert ["Service",{"metadata":{"name":"web","namespace":"default","resourceVersion":"7"}}]',
    'object received {"kind":"Service"}',
    'upsert ["Service","no object"]',
    'object removed {"kind":"EndpointSlice","namespace":"default","name":"web-1"}',
    'remove ["EndpointSlice","default","web-1"]',
    'synced ["Service"]',
    'failed ["x"]',
  ])
})
