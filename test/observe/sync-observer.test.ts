import t from 'tap'
import { SyncObserver } from '../../lib/observe/sync-observer.js'
import { service, states } from '../support/states.js'
import type { Log, Meter } from '../../lib/modes/mode.js'
import type { ModeName } from '../../lib/config/config.js'
import type { SyncReport } from '../../lib/sync/syncer.js'
import { TrackerSink } from '../../lib/sources/tracker-sink.js'
import { Tracker, type StateUpdate } from '../../lib/state/tracker.js'
import { plainNode, rawService, rawSlice } from '../state/objects.js'

function observing(mode: ModeName = 'iptables', age = () => 50_000) {
  const numbers: string[] = []
  const lines: { level: string; fields: object; message: string }[] = []
  const note = (verb: string) => (name: string, labels: object, value?: number) => {
    const shown = Object.values(labels).join(',')
    numbers.push(`${verb} ${name}{${shown}} ${value ?? 1}`)
  }
  const meter: Meter = {
    count: note('count'),
    gauge: note('gauge'),
    observe: note('observe'),
    forget: () => undefined,
  }
  const say = (level: string) => (fields: object, message: string) =>
    lines.push({ level, fields, message })
  const log: Log = {
    debug: say('debug'),
    info: say('info'),
    warn: say('warn'),
    error: say('error'),
  }
  const observer = new SyncObserver({
    mode,
    log,
    meter,
    now: () => 60_000,
    age,
    startedAt: 10_000,
  })
  return { observer, numbers, lines }
}

const report: SyncReport = {
  family: 'IPv4',
  outcome: 'applied',
  full: false,
  planMs: 1,
  applyMs: 4,
  bytes: 100,
  objects: 3,
  failed: [],
}

const update: StateUpdate = {
  states: [],
  changed: new Map(),
  triggerTimes: new Map([['IPv4', [5000, 57_000]]]),
  healthChecks: new Map(),
  withoutLocalEndpoints: [{ policy: 'external', family: 'IPv4', count: 2 }],
  warnings: [],
}

t.test('a sync logs one line, and a sync without changes is a detail', async (t) => {
  const { observer, lines } = observing()
  const syncs = () => lines.filter(({ message }) => message !== 'sync measured')
  observer.synced(report, 7)
  t.match(syncs(), [
    {
      level: 'info',
      fields: { mode: 'iptables', family: 'IPv4', changed: 7, ms: 5, bytes: 100 },
    },
  ])
  observer.synced({ ...report, outcome: 'unchanged' }, 0)
  t.equal(syncs()[1]?.level, 'debug')
})

t.test('syncs that follow each other closely are details, one a second is told', async (t) => {
  let age = 50_000
  const { observer, lines } = observing('nftables', () => age)
  const levels = (...syncs: readonly Partial<SyncReport>[]) => {
    for (const sync of syncs) observer.synced({ ...report, ...sync }, 1)
    const complete = ({ message }: { message: string }) => message === 'SyncProxyRules complete'
    return lines
      .splice(0)
      .filter(complete)
      .map(({ level }) => level)
  }
  t.same(levels({}, {}, { family: 'IPv6' }), ['info', 'debug', 'info'], 'by IP family')
  t.same(levels({ full: true }), ['info'], 'everything written anew is always told')
  age += 999
  t.same(levels({}), ['debug'])
  age += 1
  t.same(levels({}, {}), ['info', 'debug'])
})

t.test('EV07: added, changed and removed service ports are logged as details', async (t) => {
  const { observer, lines } = observing()
  const cluster = states().put(service())
  const told = () => {
    observer.started({ ...update, states: [cluster.take()] })
    return lines
      .splice(0)
      .filter(({ message }) => message.endsWith('service port'))
      .map(({ level, fields, message }) => [level, message, Object.values(fields)[0] as string])
      .sort(([, one], [, two]) => String(one).localeCompare(String(two)))
  }
  t.same(told(), [['debug', 'Adding new service port', 'default/web:http/TCP']])
  t.same(told(), [], 'nothing new, nothing told')
  cluster.put(service({ endpoints: 3 }), service({ name: 'api', clusterIp: '10.96.0.11' }))
  t.same(told(), [
    ['debug', 'Adding new service port', 'default/api:http/TCP'],
    ['debug', 'Updating existing service port', 'default/web:http/TCP'],
  ])
  cluster.remove(service())
  t.same(told(), [['debug', 'Removing service port', 'default/web:http/TCP']])
})

t.test('section 15: metrics count durations and policies without endpoints', async (t) => {
  const { observer, numbers } = observing()
  observer.started(update)
  observer.synced(report, 1)
  observer.synced({ ...report, full: true }, 1)
  for (const number of [
    'gauge sync_proxy_rules_no_local_endpoints_total{external,IPv4} 2',
    'observe sync_proxy_rules_duration_seconds{IPv4} 0.005',
    'observe sync_partial_proxy_rules_duration_seconds{IPv4} 0.005',
    'observe sync_full_proxy_rules_duration_seconds{IPv4} 0.005',
    'gauge sync_proxy_rules_last_timestamp_seconds{IPv4} 60',
    'gauge first_sync_seconds{IPv4} 50',
  ]) {
    t.ok(numbers.includes(number), number)
  }
  t.equal(
    numbers.filter((number) => number.includes('first_sync')).length,
    1,
    'only the first is first',
  )
})

t.test('a family without changes gives the histograms of durations no zeros', async (t) => {
  const { observer, numbers } = observing()
  observer.synced({ ...report, outcome: 'unchanged', planMs: 0, applyMs: 0 }, 0)
  t.notMatch(numbers.join(), /observe/)
  t.match(numbers.join(), /sync_proxy_rules_last_timestamp_seconds/, 'it is in force all the same')
})

t.test('changes are counted when they are seen, and wait until a sync starts', async (t) => {
  const { observer, numbers } = observing()
  const tracker = new Tracker({
    ...plainNode,
    noticed: (kind, waiting) => observer.noticed(kind, waiting),
  })
  const nothing = () => undefined
  const sink = new TrackerSink(tracker, 'here', {
    ...{ changed: nothing, malformed: nothing, warned: nothing, nodeChanged: nothing },
    failed: nothing,
  })
  const told = () => numbers.splice(0).map((number) => number.replace('sync_proxy_rules_', ''))
  const seen = (kind: string, waiting: number) => [
    `count ${kind}_changes_total{} 1`,
    `gauge ${kind}_changes_pending{} ${waiting}`,
  ]
  sink.upsert('Service', rawService())
  t.same(told(), seen('service', 1))
  sink.upsert('Service', rawService())
  t.same(told(), [], 'the same object again is no change')
  sink.upsert('EndpointSlice', rawSlice())
  t.same(told(), seen('endpoint', 1))
  sink.remove('EndpointSlice', 'default', 'web-1')
  t.same(told(), seen('endpoint', 1), 'one object waits, with two changes')
  sink.remove('Service', 'default', 'web')
  t.same(told(), seen('service', 1))
  observer.started({ ...tracker.take(), states: [], withoutLocalEndpoints: [] })
  const none = ['gauge endpoint_changes_pending{} 0', 'gauge service_changes_pending{} 0']
  t.same(told(), none)
  sink.upsert('Service', rawService())
  t.same(told(), seen('service', 1), 'what the sync took waits no more')
})

t.test(
  'E10: latency is measured from the trigger to the end of the sync, but not for old triggers',
  async (t) => {
    const { observer, numbers } = observing()
    const latencies = () => numbers.filter((number) => number.includes('network_programming'))
    observer.started(update)
    observer.synced({ ...report, outcome: 'failed', error: 'no' }, 1)
    t.same(latencies(), [], 'a failed sync puts nothing in force')
    observer.synced(report, 1)
    t.same(latencies(), ['observe network_programming_duration_seconds{IPv4} 3'])
    observer.synced(report, 1)
    t.equal(latencies().length, 1)
  },
)

t.test(
  'failures are counted by mode, as upstream does, and logged with the message of the tool',
  async (t) => {
    const failed: SyncReport = {
      ...report,
      outcome: 'failed',
      error: 'restore: refused',
      detail: 'line 3 failed',
    }
    const counts = (mode: ModeName, of: SyncReport) => {
      const { observer, numbers, lines } = observing(mode)
      observer.synced(of, 1)
      t.match(lines, [
        { level: 'error', fields: { error: 'restore: refused', detail: 'line 3 failed' } },
      ])
      return numbers
        .filter((number) => number.includes('failures'))
        .map((number) => number.split(/[ {]/)[1])
    }
    t.same(counts('iptables', failed), [
      'sync_failures_total',
      'sync_proxy_rules_iptables_restore_failures_total',
      'sync_proxy_rules_iptables_partial_restore_failures_total',
    ])
    t.same(counts('iptables', { ...failed, full: true }), [
      'sync_failures_total',
      'sync_proxy_rules_iptables_restore_failures_total',
    ])
    t.same(counts('nftables', failed), [
      'sync_failures_total',
      'sync_proxy_rules_nftables_sync_failures_total',
    ])
    t.same(counts('userspace', failed), ['sync_failures_total'])
  },
)

t.test(
  'a service port that failed is named with its reason, and the sync counts as a failure',
  async (t) => {
    const { observer, numbers, lines } = observing('userspace')
    observer.synced({ ...report, failed: [{ key: 'a/b:c/TCP', reason: 'port 80 is taken' }] }, 1)
    t.match(lines[0], {
      level: 'warn',
      fields: { service: 'a/b:c/TCP', reason: 'port 80 is taken' },
    })
    t.ok(numbers.includes('count sync_failures_total{IPv4} 1'))
  },
)

t.test('a repeated failure with the same reason is counted, but not logged again', async (t) => {
  const { observer, numbers, lines } = observing('userspace')
  const said = (level: string) => lines.filter((line) => line.level === level).length
  const services = (...reasons: string[]) =>
    reasons.map((reason, index) => ({ key: `a/b:${index}/TCP`, reason }))
  observer.synced({ ...report, failed: services('taken', 'full') }, 1)
  observer.synced({ ...report, failed: services('taken', 'full') }, 1)
  t.equal(said('warn'), 2)
  observer.synced({ ...report, failed: services('taken', 'denied') }, 1)
  t.equal(said('warn'), 3, 'another reason is news')
  observer.synced({ ...report, failed: [] }, 1)
  observer.synced({ ...report, failed: services('taken') }, 1)
  t.equal(said('warn'), 4, 'as it is after it worked')
  const broken = (error: string): SyncReport => ({ ...report, outcome: 'failed', error })
  for (const error of ['EMFILE', 'EMFILE', 'ENOMEM']) observer.synced(broken(error), 1)
  t.equal(said('error'), 2)
  observer.synced(report, 1)
  observer.synced(broken('ENOMEM'), 1)
  t.equal(said('error'), 3)
  t.equal(numbers.filter((number) => number.includes('sync_failures_total')).length, 8)
})

t.test(
  'IT45: latency and time stamp come after a good restore, never after a failed one',
  async (t) => {
    const { observer, numbers } = observing()
    const wanted = [
      'network_programming_duration_seconds',
      'sync_proxy_rules_last_timestamp_seconds',
    ]
    const seen = () => wanted.filter((name) => numbers.some((line) => line.includes(` ${name}{`)))
    observer.started(update)
    observer.synced({ ...report, outcome: 'failed', error: 'refused' }, 1)
    t.same(seen(), [])
    observer.synced(report, 1)
    t.same(seen(), wanted)
  },
)
