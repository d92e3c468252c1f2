import t from 'tap'
import { endpointCheckOf } from '../../lib/state/endpoint-check.js'
import { EndpointHealth } from '../../lib/observe/endpoint-health.js'
import { failingEndpoints } from '../../lib/cli/seen-node.js'
import { Metrics } from '../../lib/observe/metrics.js'
import type { PortHealth } from '../../lib/sources/health/health-checks.js'
import type { ProxyEvent } from '../../lib/observe/events.js'

/** The Events and log lines about a Service with ten endpoints, of which some fail. */
function told() {
  const events: ProxyEvent[] = []
  const lines: string[] = []
  let time = 0
  const note = (_fields: object, message: string) => void lines.push(message)
  const meter = new Metrics({ mode: 'nftables', process: false, onUnknown: (name) => t.fail(name) })
  const observer = new EndpointHealth({
    ...{ log: { debug: note, info: note, warn: note, error: note }, meter },
    ...{ events: { record: (event: ProxyEvent) => events.push(event) }, now: () => time },
  })
  const check = endpointCheckOf({ 'health-check': 'http:/healthz' }, 'TCP')
  if (!check) throw new Error('no check')
  const health = (...failing: readonly string[]): PortHealth => ({
    port: { namespace: 'shop', name: 'web', port: 'http', protocol: 'TCP' },
    ...{ family: 'IPv4', check, checked: 10 },
    failing: new Map(failing.map((endpoint) => [endpoint, 'connection refused'])),
  })
  const turn = (endpoint: string) => ({ endpoint, reason: 'connection refused' })
  const later = (ms: number) => (time += ms)
  return { observer, events, lines, meter, health, turn, later }
}

t.test('one Event a minute and Service names what fails, and how many are left', async (t) => {
  const { observer, events, lines, health, turn, later } = told()
  observer.turned(health('a', 'b'), [turn('a'), turn('b')])
  t.match(events, [
    {
      ...{ type: 'Warning', reason: 'EndpointFailing' },
      note: /http:\/healthz.*: a \(connection refused\), b \(.*\) fail; 8 of 10 endpoints work/,
      regarding: { kind: 'Service', namespace: 'shop', name: 'web' },
    },
  ])
  observer.turned(health('a', 'b', 'c'), [turn('c')])
  t.equal(events.length, 1)
  t.equal(lines.length, 2, 'the log has all')
  observer.turned(health('a', 'b'), [{ endpoint: 'c', reason: undefined }])
  t.match(events.at(-1), { type: 'Normal', reason: 'EndpointWorking', note: /c pass again/ })
  later(60_000)
  observer.turned(health('a', 'b', 'c'), [turn('c')])
  t.equal(events.length, 3)
})

t.test('what fails within the minute after an Event is told when the minute is over', async (t) => {
  const { observer, events, health, turn, later } = told()
  const counts = { good: 1, bad: 1, unknown: 0 }
  observer.turned(health('a'), [turn('a')])
  for (const failing of ['b', 'c', 'd']) observer.turned(health('a', failing), [turn(failing)])
  observer.turned(health('a', 'b', 'c'), [{ endpoint: 'd', reason: undefined }])
  t.match(events.pop(), { reason: 'EndpointWorking' })
  later(59_000)
  observer.counted(counts)
  t.match(events, [{ note: /: a \(.*\) fail; 9 of 10 endpoints work$/ }])
  later(1_000)
  const now = { ...health('a', 'b', 'c'), checked: 9 }
  observer.followed('IPv4 shop/web:http/TCP', now)
  observer.counted(counts)
  t.match(events[1]?.note, /: b \(.*\), c \(.*\) fail; 6 of 9 endpoints work$/, 'not d')
  later(60_000)
  observer.counted(counts)
  t.equal(events.length, 2, 'once')
  observer.turned(health('e'), [turn('e')])
  observer.turned(health('e', 'f'), [turn('f')])
  observer.followed('IPv4 shop/web:http/TCP', undefined)
  later(60_000)
  observer.counted(counts)
  t.equal(events.length, 3, 'f is of a Service that is gone')
})

t.test('a line of the health page, metrics, and what explain asks for', async (t) => {
  const { observer, meter, health } = told()
  t.same(observer.lines(), [], 'nobody asks for checks')
  observer.followed('IPv4 shop/web:http/TCP', health('10.0.0.1:80'))
  observer.counted({ good: 9, bad: 1, unknown: 0 })
  t.same(observer.lines(), [
    {
      name: 'health checks of endpoints',
      isGood: false,
      text: '10 checked, 1 fail; shop/web:http 10.0.0.1:80: connection refused',
    },
  ])
  const page = (await meter.page()).body
  const labels = 'service="shop/web:http",protocol="TCP",ip_family="IPv4"'
  t.match(page, `kubeproxy_endpoints_checked{${labels}} 10`)
  t.match(page, `kubeproxy_endpoints_failing{${labels}} 1`)
  t.match(page, 'kubeproxy_health_checks_total{outcome="bad"} 1')
  const failure = { endpoint: '10.0.0.1:80', reason: 'connection refused', port: health().port }
  const sent = JSON.stringify(observer.failing())
  t.same(failingEndpoints(sent), [failure], 'one process understands the other')
  for (const text of ['', 'x', '{}', '[1]', '[{"port":{}}]']) t.same(failingEndpoints(text), [])
  observer.followed('IPv4 shop/web:http/TCP', undefined)
  t.same(observer.failing(), [])
  t.notMatch((await meter.page()).body, 'endpoints_failing{')
})
