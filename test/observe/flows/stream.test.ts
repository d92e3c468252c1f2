import t from 'tap'
import { setTimeout as delay } from 'node:timers/promises'
import { FlowLog } from '../../../lib/observe/flows/flow-log.js'
import { flowsAnswer, FlowsFollower } from '../../../lib/observe/flows/answer.js'
import { Flows } from '../../../lib/observe/flows/flows.js'
import { RecentIds } from '../../../lib/observe/flows/recent-ids.js'
import { flowHead, flowText } from '../../../lib/observe/flows/text.js'
import { type FlowLine, Sampler } from '../../../lib/observe/flows/line.js'

const line = (more: Partial<FlowLine> = {}): FlowLine => ({
  ...{ at: 0, event: 'opened', verdict: 'forwarded', why: '', protocol: 'TCP' },
  ...{ client: '10.244.1.7:40000', service: 'default/web:http', address: '10.96.0.10:80' },
  endpoint: '10.244.2.3:8080',
  ...more,
})

const pods = new Map([['10.244.1.7', 'default/shop-1']])
const logOf = (limit: number, ...lines: readonly FlowLine[]) => {
  const log = new FlowLog(limit, (ip) => pods.get(ip) ?? '')
  log.add(lines, 0)
  return log
}

t.test('the stream is filtered by Service, client and verdict', (t) => {
  const log = logOf(
    10,
    line(),
    line({ service: 'other/web:http', client: '[fd00::7]:40000' }),
    line({ service: 'default/db', verdict: 'refused' }),
  )
  const found = (query: string) => flowsAnswer(log, query).flows.map(({ service }) => service)
  t.same(found('service=web'), ['default/web:http', 'other/web:http'])
  t.same(found('service=default/web:http'), ['default/web:http'])
  t.same(found('service=web:https'), [])
  t.same(found('service=default/db/TCP'), ['default/db'], 'as `top` and the log name it')
  t.same(found('service=default/db/UDP'), [])
  t.same(found('from=fd00::/64'), ['other/web:http'])
  t.same(found('from=fd00::8,fd00::7'), ['other/web:http'], 'a pod has an address of each family')
  t.same(found('from=shop-1&service=db'), ['default/db'])
  t.same(found('from=default/shop-1&verdict=refused'), ['default/db'])
  t.throws(() => found('verdict=lost'), /forwarded, refused, dropped, no-endpoints/)
  t.throws(() => found('after=-1'), /whole number/)
  t.end()
})

t.test('the stream goes on after a number, and forgets what is old', (t) => {
  const log = logOf(3, ...Array.from({ length: 7 }, (_, at) => line({ at })))
  const { flows, next } = flowsAnswer(log, '')
  t.equal(flows.length, 3, 'the newest')
  t.equal(next, 7)
  t.same(flowsAnswer(log, `after=${next}`).flows, [])
  log.add([line({ at: 8 })], 5)
  const more = flowsAnswer(log, `after=${next}`)
  t.same(
    more.flows.map(({ time }) => time),
    ['1970-01-01T00:00:00.008Z'],
  )
  t.equal(more.leftOut, 5)
  t.equal(flowsAnswer(log, 'limit=2').flows.length, 2)
  const long = logOf(4096, ...Array.from({ length: 2000 }, () => line()))
  t.equal(flowsAnswer(long, 'limit=1500').flows.length, 1500, 'as many as were asked for')
  t.equal(flowsAnswer(long, 'after=100').flows.length, 1900, 'none is left out in silence')
  t.end()
})

t.test('who waits for more lines gets all of a proxy that was restarted meanwhile', async (t) => {
  const silent = () => undefined
  const meter = { count: silent, gauge: silent, observe: silent, forget: silent }
  const log = { debug: silent, info: silent, warn: silent, error: silent }
  const start = () =>
    new Flows({
      ...{ kernel: 'told', onlyTranslated: false, stateFile: '', refusalGroup: undefined },
      ...{ meter, log, podAt: () => '' },
    })
  const follower = new FlowsFollower(new URLSearchParams())
  const first = start()
  first.told([line(), line()], 6)
  t.equal(follower.take(flowsAnswer(first.lines, follower.query())), 6)
  await delay(20)
  const second = start()
  second.told([line(), line(), line(), line()], 1)
  const answer = flowsAnswer(second.lines, follower.query())
  t.equal(answer.flows.length, 4)
  t.equal(follower.take(answer), 1)
  t.same(flowsAnswer(second.lines, follower.query()).flows, [], 'none twice')
})

t.test('above so many lines a second the rest is counted', (t) => {
  let now = 0
  let told = 0
  const sampler = new Sampler(
    2,
    () => now,
    () => told++,
  )
  t.same([sampler.admits(), sampler.admits(), sampler.admits()], [true, true, false])
  t.equal(told, 1, 'who tells of it hears of it, though no line follows')
  now = 1000
  t.ok(sampler.admits())
  t.equal(sampler.takeLeftOut(), 1)
  t.equal(sampler.takeLeftOut(), 0)
  t.end()
})

t.test('connections of the last moments are known, however long a reading takes', (t) => {
  let now = 1_000_000
  const recent = new RecentIds(() => now)
  t.ok(recent.add(1))
  now += 2_500
  recent.add(2 ** 32 - 2)
  t.ok(recent.since <= now - 2_400, 'all since then are known')
  t.same(recent.ids(), [1, -2])
  recent.hold(true)
  now += 60_000
  t.notOk(recent.add(1), 'nothing is forgotten now')
  t.notOk(recent.add(-2), 'a saved id is the same one')
  recent.hold(false)
  recent.add(3)
  t.notOk(recent.add(3), 'an event may tell of what was listed')
  now += 60_000
  recent.add(4)
  t.same(recent.ids(), [3, 4])
  now += 60_000
  t.ok(recent.add(4), 'nobody looks any more')
  t.end()
})

t.test('an id that was given to a second connection is that of one that lives', (t) => {
  const recent = new RecentIds(() => 1_000_000)
  for (let id = 0; id < 3000; id++) recent.add(id)
  recent.forget(0)
  recent.forget(1)
  recent.add(1)
  t.notOk(recent.ids().includes(0))
  t.ok(recent.ids().includes(1))
  t.equal(recent.ids().length, 2999)
  t.end()
})

t.test('a verdict has a colour where colours are shown', (t) => {
  const { flows } = flowsAnswer(logOf(10, line(), line({ verdict: 'dropped' })), '')
  const [good, bad] = flows.map((flow) => flowText(flow, { isWide: false, isColoured: true }))
  t.match(good, /  \u001b\[32mforwarded {3}\u001b\[0m {2}opened$/)
  t.match(bad, /  \u001b\[31mdropped {5}\u001b\[0m {2}opened$/)
  const plain = flows.map((flow) => flowText(flow, { isWide: false, isColoured: false }))
  t.notMatch(plain.join('\n'), /\u001b/)
  const [wide] = flows.map((flow) => flowText(flow, { isWide: true, isColoured: false }))
  const columns = (row: string) => [...row.matchAll(/(?<=  )\S/g)].map(({ index }) => index)
  t.same(columns(wide ?? ''), columns(flowHead(true)), 'each cell stands below its head')
  t.end()
})
