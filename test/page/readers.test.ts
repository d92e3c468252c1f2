import { EventEmitter, once } from 'node:events'
import { setTimeout as delay } from 'node:timers/promises'
import { get } from 'node:http'
import t from 'tap'
import { PageServer } from '../../lib/page/server.js'
import { PersistentMap } from '../../lib/state/persistent-map.js'
import { Readers, type PageView, type ReaderConnection } from '../../lib/page/readers.js'
import type { Frame, ServiceLine } from '../../lib/page/view.js'
import { untilTrue } from '../support/until.js'

/** A reader that takes frames only when it is told to. */
class Reading extends EventEmitter implements ReaderConnection {
  readonly frames: Buffer[] = []
  isDropped = false
  isSlow = false

  write(frame: Buffer): boolean {
    this.frames.push(frame)
    return !this.isSlow
  }

  take(): void {
    this.emit('drain')
  }

  destroy(): void {
    this.isDropped = true
    this.emit('close')
  }

  get texts(): readonly string[] {
    return this.frames.map(String)
  }

  /** The last frame. */
  get last(): Frame {
    return JSON.parse((this.texts.at(-1) ?? '').replace(/^data: /, '')) as Frame
  }
}

const line = (key: string, ports = '80/TCP'): ServiceLine => ({
  ...{ key, ports, type: 'ClusterIP', clusterIp: '10.96.0.1' },
})

/** A source that counts its views, and the readers of it. */
function opened({ stalledMs = 1e6 } = {}) {
  let changed: (() => void) | undefined
  let services = PersistentMap.empty<ServiceLine>()
  let busy = ''
  const counts = { views: 0 }
  const readers = new Readers({
    source: {
      view: () => {
        counts.views++
        // The tests need no other parts.
        return { services, busy, limits: ['some'] } as unknown as PageView
      },
      subscribe: (listener) => {
        changed = listener
        return () => (changed = undefined)
      },
    },
    frameMs: 1,
    stalledMs,
  })
  const change = async (next: string, ...lines: readonly ServiceLine[]) => {
    busy = next
    services = services.update(lines.map((each) => [each.key, each]))
    changed?.()
    // This timer ends after that of the frames, and timers run in the order in which they end.
    await delay(20)
  }
  const add = async () => {
    const reading = new Reading()
    readers.add(reading)
    await delay(20)
    return reading
  }
  const remove = async (key: string) => {
    services = services.update([[key, undefined]])
    changed?.()
    await delay(20)
  }
  return { readers, change, add, remove, counts, isWatched: () => changed !== undefined }
}

t.test('a view is made once for all readers, and they are sent the same bytes', async (t) => {
  const { change, add, counts } = opened()
  const all = [await add(), await add(), await add()]
  const [first] = all
  counts.views = 0
  await change('a', line('default/a'), line('default/b'))
  t.equal(counts.views, 1)
  for (const { frames } of all) t.equal(frames.at(-1), first?.frames.at(-1))
  t.equal(first?.last.busy, 'a')
  t.same(first?.last.services?.set.map(({ key }) => key).sort(), ['default/a', 'default/b'])
})

t.test('a frame holds what differs, and nothing is sent when nothing does', async (t) => {
  const { change, add, remove } = opened()
  await change('', line('default/a'), line('default/b'))
  const reader = await add()
  t.same(reader.last.limits, ['some'], 'the first frame holds everything')
  t.equal(reader.last.services?.set.length, 2)
  await change('', line('default/b', '443/TCP'))
  t.same(reader.last, { services: { set: [line('default/b', '443/TCP')], gone: [] } })
  await remove('default/a')
  t.same(reader.last, { services: { set: [], gone: ['default/a'] } })
  const { length } = reader.frames
  await change('')
  t.equal(reader.frames.length, length)
})

t.test('a slow reader gets the newest frame and never a backlog', async (t) => {
  const { change, add } = opened()
  const [slow, quick] = [await add(), await add()]
  slow.isSlow = true
  const before = slow.frames.length
  for (let round = 1; round <= 10; round++) {
    await change(`round ${round}`, line(`default/s${round % 3}`, `${round}/TCP`))
  }
  t.equal(slow.frames.length, before + 1, 'nothing more is written before it has taken the first')
  t.equal(quick.last.busy, 'round 10', 'and nobody else waits for it')
  slow.isSlow = false
  slow.take()
  t.equal(slow.frames.length, before + 2)
  t.equal(slow.last.busy, 'round 10')
  const lines = slow.last.services?.set.map(({ key, ports }) => `${key} ${ports}`)
  t.same(lines?.sort(), ['default/s0 9/TCP', 'default/s1 10/TCP', 'default/s2 8/TCP'])
})

t.test('a reader that never reads is dropped, and the others go on', async (t) => {
  const { readers, change, add } = opened({ stalledMs: 5 })
  const [stuck, quick] = [await add(), await add()]
  stuck.isSlow = true
  const gone = once(stuck, 'close')
  await change('a')
  await gone
  t.ok(stuck.isDropped)
  t.equal(readers.size, 1)
  await change('b')
  t.equal(quick.last.busy, 'b')
})

t.test('without readers no view is made', async (t) => {
  const { add, change, counts, isWatched } = opened()
  await change('a')
  t.equal(counts.views, 0)
  const reader = await add()
  reader.destroy()
  t.notOk(isWatched())
  counts.views = 0
  await change('b')
  t.equal(counts.views, 0)
})

t.test('no view is made while there is something more important to do', async (t) => {
  let end: () => void = () => undefined
  const idle = new Promise<void>((resolve) => (end = resolve))
  let views = 0
  const view = () => {
    views++
    return { busy: '' } as unknown as PageView
  }
  const source = { view, subscribe: () => () => undefined, idle: () => idle }
  const readers = new Readers({ source, frameMs: 1, stalledMs: 1e6 })
  const reading = new Reading()
  readers.add(reading)
  await delay(20)
  t.equal(views, 0)
  end()
  await untilTrue(() => views !== 0)
  t.equal(views, 1)
  reading.destroy()
})

t.test('the number of readers is bounded, and the newest is told', async (t) => {
  const page = await PageServer.listen(
    { view: () => ({ busy: '' }) as unknown as PageView, subscribe: () => () => undefined },
    0,
  )
  t.teardown(() => page.close())
  const open = () =>
    new Promise<number>((resolve, reject) => {
      const request = get(`${page.url}/events`, (reply) => {
        reply.resume().on('error', () => undefined)
        resolve(reply.statusCode ?? 0)
      })
      request.on('error', reject)
    })
  const statuses: number[] = []
  for (let reader = 0; reader < 17; reader++) statuses.push(await open())
  t.same(new Set(statuses.slice(0, 16)), new Set([200]))
  t.equal(statuses.at(-1), 503)
})
