import { EventEmitter } from 'node:events'
import { setTimeout as delay } from 'node:timers/promises'
import t from 'tap'
import { DashboardSource } from '../../lib/page/dashboard/source.js'
import { FlowLog } from '../../lib/observe/flows/flow-log.js'
import { mode as nftables } from '../../lib/modes/nftables/index.js'
import { parsePageCommand } from '../../lib/page/commands.js'
import { PodNames } from '../../lib/sources/pod-names.js'
import { Readers, type ReaderConnection } from '../../lib/page/readers.js'
import { Stream } from '../../lib/page/dashboard/stream.js'
import { testConfig } from '../support/states.js'
import type { FlowChoice, Frame } from '../../lib/page/view.js'
import type { FlowLine } from '../../lib/observe/flows/line.js'
import { untilTrue } from '../support/until.js'

/** The stream of connections on the page of a live proxy. */

const line = (at: number, more: Partial<FlowLine> = {}): FlowLine => ({
  ...{ at, event: 'opened', verdict: 'forwarded', why: '', protocol: 'TCP' },
  ...{ client: '10.244.1.7:40000', service: 'default/web:http', address: '10.96.0.10:80' },
  endpoint: '10.244.2.3:8080',
  ...more,
})
const lines = (count: number) => Array.from({ length: count }, (_, index) => line(index))
const pods = new Map([['10.244.1.7', 'default/shop-1']])
const opened = () => new FlowLog(1_000, (ip) => pods.get(ip) ?? '')
const everything: FlowChoice = { service: '', from: '', verdict: '' }
const keysOf = (stream: Stream) => [...stream.view().flows.keys()].map(Number).sort((a, b) => a - b)

t.test('the page has the newest hundred lines, and a look adds what is new', (t) => {
  const log = opened()
  const stream = new Stream(log)
  t.same(keysOf(stream), [])
  log.add(lines(150), 0)
  const keys = keysOf(stream)
  t.equal(keys.length, 100)
  t.equal(keys[0], 51)
  const before = stream.view().flows
  t.equal(stream.view().flows, before, 'without anything new it is the same')
  log.add([line(1, { client: '[fd00::7]:40000', endpoint: '' })], 12)
  const { flows, stream: about } = stream.view()
  const { added, changed, removed } = flows.since(before)
  t.same([added.length, changed.length, removed.length], [1, 0, 1])
  t.equal(removed[0]?.[0], '51', 'the oldest is gone')
  t.match(added[0]?.[1], { key: '151', from: 'fd00::7', clientPod: '', endpoint: '' })
  t.match(before.get('150'), { from: 'default/shop-1', time: '1970-01-01T00:00:00.149Z' })
  t.equal(about?.leftOut, 12)
  log.add(lines(700), 0)
  t.equal(stream.view().flows.size, 100, 'who looks late gets the newest')
  t.end()
})

t.test('a click on a Service, a client or a verdict leaves only what fits', (t) => {
  const log = opened()
  const stream = new Stream(log)
  log.add(
    [
      line(1),
      line(2, { service: 'default/db' }),
      line(3, { client: '10.244.9.9:1', verdict: 'refused' }),
      line(4, { client: '[fd00::7]:1', verdict: 'no-endpoints', endpoint: '' }),
    ],
    0,
  )
  const shownBy = (choice: Partial<FlowChoice>) => {
    stream.choose({ ...everything, ...choice })
    return keysOf(stream)
  }
  t.same(shownBy({ service: 'default/web:http' }), [1, 3, 4])
  t.same(shownBy({ from: 'default/shop-1' }), [1, 2])
  t.same(shownBy({ from: 'fd00::7' }), [4])
  t.same(shownBy({ verdict: 'refused' }), [3])
  t.same(shownBy({ from: 'default/shop-1', service: 'default/db' }), [2])
  log.add([line(5), line(6, { service: 'default/db' })], 0)
  t.same(keysOf(stream), [2, 6], 'and of what comes then')
  t.same(shownBy({}), [1, 2, 3, 4, 5, 6])
  t.end()
})

t.test('without --flows the page says how to get them', (t) => {
  const { flows, stream } = new Stream(undefined).view()
  t.equal(flows.size, 0)
  t.match(stream?.note, /does not follow connections: start it with --flows/)
  t.end()
})

/** A reader that takes frames only when it is told to. */
class Reading extends EventEmitter implements ReaderConnection {
  readonly frames: Frame[] = []
  isSlow = false

  write(frame: Buffer): boolean {
    this.frames.push(JSON.parse(String(frame).replace(/^data: /, '')) as Frame)
    return !this.isSlow
  }

  destroy(): void {
    this.emit('close')
  }
}

t.test('readers are sent the lines that are new to them, and slow ones skip lines', async (t) => {
  const log = opened()
  const planner = nftables.planner(testConfig)
  const source = new DashboardSource({
    ...{ mode: 'nftables', nodeName: 'node-1', podNames: new PodNames(), flows: log },
    log: { debug: () => {}, info: () => {}, warn: () => {}, error: () => {} },
    current: () => ({ config: testConfig, planner }),
    count: () => Promise.resolve([]),
  })
  const readers = new Readers({ source, frameMs: 1, stalledMs: 1e6 })
  const [quick, slow] = [new Reading(), new Reading()]
  for (const reader of [quick, slow]) readers.add(reader)
  const add = async (count: number) => {
    const before = quick.frames.length
    log.add(lines(count), 0)
    await untilTrue(() => quick.frames.length !== before)
  }
  await add(3)
  t.equal(quick.frames.at(-1)?.flows?.set.length, 3)
  const before = quick.frames.length
  await add(2)
  t.same(Object.keys(quick.frames.at(-1) ?? {}), ['flows'], 'and nothing else is sent')
  t.same(
    quick.frames
      .at(-1)
      ?.flows?.set.map(({ key }) => key)
      .sort(),
    ['4', '5'],
  )
  log.add([], 0)
  await delay(20)
  t.equal(quick.frames.length, before + 1, 'nothing new, nothing sent')

  slow.isSlow = true
  const taken = slow.frames.length
  for (let round = 0; round < 5; round++) await add(60)
  t.equal(slow.frames.length, taken + 1, 'nothing waits for who does not read')
  slow.isSlow = false
  slow.emit('drain')
  const { set = [], gone = [] } = slow.frames.at(-1)?.flows ?? {}
  t.same([set.length, gone.length], [100, 65], 'what it has missed in between is never sent')
  t.equal(Math.max(...set.map(({ key }) => Number(key))), 305)
  quick.destroy()
  slow.destroy()
})

t.test('a choice of connections is bounded text, and a verdict that exists', (t) => {
  const choice = { do: 'flows', ...everything, from: '10.0.0.1' }
  const parsed = (change: object) => parsePageCommand(JSON.stringify({ ...choice, ...change }))
  t.same(parsed({}), choice)
  t.equal(parsed({ verdict: 'lost' }), undefined)
  t.equal(parsed({ service: 7 }), undefined)
  t.equal(parsed({ from: 'x'.repeat(1_000) }), undefined)
  t.equal(parsed({ service: undefined }), undefined)
  t.end()
})
