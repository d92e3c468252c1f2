import t from 'tap'
import { ModeStatus } from '../../lib/observe/mode-status.js'
import { Metrics } from '../../lib/observe/metrics.js'
import type { SyncReport } from '../../lib/sync/syncer.js'

const fine = { full: false, planMs: 1, applyMs: 1, bytes: 1, objects: 1, failed: [] }
const applied: SyncReport = { ...fine, family: 'IPv4', outcome: 'applied' }

function statusAt(fallback = '') {
  let now = Date.parse('2026-01-01T00:00:00Z')
  const metrics = new Metrics({ mode: 'nftables', process: false })
  const status = new ModeStatus({
    ...{ families: ['IPv4', 'IPv6'], mode: 'nftables', fallback, meter: metrics, now: () => now },
  })
  return {
    status,
    metrics,
    later: (seconds: number) => (now += seconds * 1000),
    lines: () =>
      status.lines().map(({ isGood, name, text }) => `${isGood ? '+' : '-'}${name}: ${text}`),
  }
}

t.test('a mode that works says so, by family', async (t) => {
  const { status, lines } = statusAt()
  status.synced(applied)
  t.same(lines(), [
    '+mode: nftables',
    '+IPv4 syncs: 1 sync, 0 failed',
    '+IPv4 service ports: all programmed',
    '-IPv6 syncs: none yet, nothing is programmed; the log says what this proxy waits for',
    '+foreign changes: none',
  ])
})

t.test('a failing family says since when and why, and the other one is not touched', async (t) => {
  const { status, lines, later } = statusAt()
  const failed = (error: string) => status.synced({ ...applied, outcome: 'failed', error })
  for (const family of ['IPv4', 'IPv6'] as const) status.synced({ ...applied, family })
  failed('table is busy')
  later(30)
  failed('no memory')
  t.match(
    lines()[1],
    /^-IPv4 syncs: 3 syncs, 2 failed; failing since 2026-01-01T00:00:00.000Z: no memory$/,
  )
  t.equal(lines()[2], '-IPv4 service ports: unknown while syncs fail')
  t.match(lines()[3], /^\+IPv6/)
  status.synced(applied)
  t.equal(lines()[1], '+IPv4 syncs: 4 syncs, 2 failed')
  t.equal(lines()[2], '+IPv4 service ports: all programmed')
  failed('again')
  t.match(lines()[1], /failing since 2026-01-01T00:00:30.000Z: again/, 'a new failure begins anew')
})

t.test('service ports that are left out are counted, with the reason of one', async (t) => {
  const { status, lines, later, metrics } = statusAt()
  const failed = [
    { key: 'd/web:http/TCP', reason: 'port 30080 is taken' },
    { key: 'd/db:sql/TCP', reason: 'no descriptor' },
  ]
  status.synced({ ...applied, failed })
  later(5)
  status.synced({ ...applied, failed })
  t.equal(
    lines()[2],
    '-IPv4 service ports: 2 not programmed since 2026-01-01T00:00:00.000Z; d/web:http/TCP: port 30080 is taken',
  )
  const page = async () => (await metrics.page()).body
  t.match(await page(), /kubeproxy_service_ports_not_programmed\{ip_family="IPv4"\} 2/)
  status.synced(applied)
  t.equal(lines()[2], '+IPv4 service ports: all programmed')
  t.match(await page(), /kubeproxy_service_ports_not_programmed\{ip_family="IPv4"\} 0/)
})

t.test('a foreign change counts as repaired once every family is written anew', async (t) => {
  const { status, lines, metrics } = statusAt()
  status.changedByOthers('chain x is gone')
  const last = () => lines().at(-1)
  t.match(
    last(),
    /^-foreign changes: 1, the newest not repaired yet; newest at .*: chain x is gone$/,
  )
  for (const family of ['IPv4', 'IPv6'] as const) status.synced({ ...applied, family })
  t.match(last(), /^-/, 'a difference repairs nothing')
  status.synced({ ...applied, full: true })
  t.match(last(), /^-/, 'IPv6 is not yet')
  status.synced({ ...applied, family: 'IPv6', full: true, outcome: 'failed', error: 'busy' })
  t.match(last(), /^-/, 'nor is it by a failed sync')
  status.synced({ ...applied, family: 'IPv6', full: true })
  t.match(last(), /^\+foreign changes: 1, all repaired/)
  t.match((await metrics.page()).body, /kubeproxy_foreign_changes_total 1/)
})

t.test('a mode that runs instead of the requested one says why', async (t) => {
  const { lines } = statusAt('this node cannot run ipvs mode: kernel module ip_vs (not found)')
  t.equal(
    lines()[0],
    '-mode: nftables: this node cannot run ipvs mode: kernel module ip_vs (not found)',
  )
})
