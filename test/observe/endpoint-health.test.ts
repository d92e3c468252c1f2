import t, { type Test } from 'tap'
import { endpointCheckOf } from '../../lib/state/endpoint-check.js'
import { keyOf } from '../../lib/state/names.js'
import { EndpointHealth } from '../../lib/observe/endpoint-health.js'
import { failingEndpoints } from '../../lib/cli/seen-node.js'
import { Metrics } from '../../lib/observe/metrics.js'
import type { PortHealth } from '../../lib/sources/health/health-checks.js'
import type { IpFamily } from '../../lib/state/ip.js'
import type { ProxyEvent } from '../../lib/observe/events.js'

interface Told {
  readonly portName?: string
  readonly family?: IpFamily
  readonly last?: 'keep' | 'remove'
}

/** The Events and log lines about a Service with ten endpoints a port, of which some fail. */
function told(t: Test) {
  const events: ProxyEvent[] = []
  const lines: string[] = []
  let time = 0
  let wake: () => void = () => undefined
  const note = (_fields: object, message: string) => void lines.push(message)
  const meter = new Metrics({ mode: 'nftables', process: false, onUnknown: (name) => t.fail(name) })
  const observer = new EndpointHealth({
    ...{ log: { debug: note, info: note, warn: note, error: note }, meter },
    ...{ events: { record: (event: ProxyEvent) => events.push(event) }, now: () => time },
    sleep: () => new Promise<void>((resolve) => (wake = resolve)),
  })
  const controller = new AbortController()
  const running = observer.run(controller.signal)
  t.teardown(() => {
    controller.abort()
    wake()
    return running
  })
  const health = (failing: readonly string[], about: Told = {}): PortHealth => {
    const { portName = 'http', family = 'IPv4', last = 'keep' } = about
    const asked = { 'health-check': 'http:/healthz', 'health-check-last': last }
    const check = endpointCheckOf(asked, 'TCP')
    if (!check) throw new Error('no check')
    return {
      port: { namespace: 'shop', name: 'web', port: portName, protocol: 'TCP' },
      ...{ family, check, checked: 10 },
      failing: new Map(failing.map((endpoint) => [endpoint, 'connection refused'])),
    }
  }
  const follow = (health: PortHealth) => observer.followed(keyIn(health), health)
  const turn = (endpoint: string) => ({ endpoint, reason: 'connection refused' })
  const back = (endpoint: string) => ({ endpoint, reason: undefined })
  const later = async (ms: number) => {
    time += ms
    wake()
    await new Promise((resolve) => setImmediate(resolve))
  }
  return { observer, events, lines, meter, health, follow, turn, back, later }
}

const keyIn = ({ family, port }: PortHealth) => `${family} ${keyOf(port)}`
const endpoints = Array.from({ length: 10 }, (_, index) => `e${index}`)

t.test('one Event a minute and Service names what fails, and how many are left', async (t) => {
  const { observer, events, lines, health, follow, turn, back, later } = told(t)
  follow(health([]))
  observer.turned(health(['a', 'b']), [turn('a'), turn('b')])
  await later(999)
  t.equal(events.length, 0, 'more may fail together with them')
  await later(1)
  t.match(events, [
    {
      ...{ type: 'Warning', reason: 'EndpointFailing' },
      note: /http:\/healthz.*: a \(connection refused\), b \(.*\) fail; 8 of 10 endpoints work$/,
      regarding: { kind: 'Service', namespace: 'shop', name: 'web' },
    },
  ])
  observer.turned(health(['a', 'b', 'c']), [turn('c')])
  await later(1000)
  t.equal(events.length, 1)
  t.equal(lines.length, 2, 'the log has all')
  observer.turned(health(['b', 'c']), [back('a')])
  await later(1000)
  t.match(events.at(-1), {
    ...{ type: 'Normal', reason: 'EndpointWorking' },
    note: /: a passes again; 8 of 10 endpoints work$/,
  })
  await later(58_000)
  t.equal(events.length, 3)
  t.match(events.at(-1)?.note, /: c \(connection refused\) fails; 8 of 10 endpoints work$/)
})

t.test('what fails within the minute after an Event is told when the minute is over', async (t) => {
  const { observer, events, health, follow, turn, back, later } = told(t)
  follow(health([]))
  observer.turned(health(['a']), [turn('a')])
  await later(1000)
  for (const failing of ['b', 'c', 'd']) {
    observer.turned(health(['a', failing]), [turn(failing)])
  }
  observer.turned(health(['a', 'b', 'c']), [back('d')])
  await later(59_000)
  t.match(events, [{ note: /: a \(.*\) fails; 9 of 10 endpoints work$/ }])
  follow({ ...health(['a', 'b', 'c']), checked: 9 })
  await later(1_000)
  t.match(events[1]?.note, /: b \(.*\), c \(.*\) fail; 6 of 9 endpoints work$/, 'not d')
  await later(60_000)
  t.equal(events.length, 2, 'once, and nothing about d')
  observer.turned(health(['f']), [turn('f')])
  observer.followed(keyIn(health([])), undefined)
  await later(60_000)
  t.equal(events.length, 2, 'f is of a Service that is gone')
})

t.test('one Event tells what fails in all ports and families of a Service', async (t) => {
  const { observer, events, health, follow, turn, later } = told(t)
  const ports: Told[] = [{}, { portName: 'admin' }, { family: 'IPv6' }]
  for (const about of ports) follow(health([], about))
  for (const [index, about] of ports.entries()) {
    const its = index === 0 ? ['a', 'b', 'c', 'd'] : [`x${index}`, 'a']
    observer.turned(health(its, about), its.map(turn))
    await later(100)
  }
  await later(700)
  t.equal(events.length, 1)
  const named = ['a', 'b', 'c', 'd', 'x1'].map((name) => `${name} (connection refused)`)
  t.match(
    events[0]?.note,
    `: ${named.join(', ')} and 1 more fail; 22 of 30 endpoints work`,
    'an endpoint of two ports is named once',
  )
  await later(60_000)
  t.equal(events.length, 1)
})

t.test('where all endpoints fail, the Event says whether they get connections', async (t) => {
  for (const [last, fate] of [
    ['keep', 'so all still get connections (health-check-last: keep)'],
    ['remove', 'and none gets connections (health-check-last: remove)'],
  ] as const) {
    const { observer, events, health, follow, turn, later } = told(t)
    for (const portName of ['http', 'admin']) follow(health([], { portName, last }))
    observer.turned(health(endpoints, { last }), endpoints.map(turn))
    await later(1000)
    const text = `10 of 20 endpoints work; for port http (IPv4) no endpoint works, ${fate}`
    t.ok(events[0]?.note.endsWith(text))
    observer.turned(health(endpoints, { portName: 'admin', last }), endpoints.map(turn))
    await later(60_000)
    t.ok(events[1]?.note.endsWith(`; no endpoint works, ${fate}`))
  }
})

t.test('a line of the health page, metrics, and what explain asks for', async (t) => {
  const { observer, meter, health } = told(t)
  t.same(observer.lines(), [], 'nobody asks for checks')
  observer.followed('IPv4 shop/web:http/TCP', health(['10.0.0.1:80']))
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
  const failure = { endpoint: '10.0.0.1:80', reason: 'connection refused', port: health([]).port }
  const sent = JSON.stringify(observer.failing())
  t.same(failingEndpoints(sent), [failure], 'one process understands the other')
  for (const text of ['', 'x', '{}', '[1]', '[{"port":{}}]']) t.same(failingEndpoints(text), [])
  observer.followed('IPv4 shop/web:http/TCP', undefined)
  t.same(observer.failing(), [])
  t.notMatch((await meter.page()).body, 'endpoints_failing{')
})
