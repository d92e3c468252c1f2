import t from 'tap'
import { existsSync, readFileSync, symlinkSync, writeFileSync, readdirSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { loadCounts, removeCounts, saveCounts } from '../../../lib/observe/flows/saved-counts.js'
import { SharedCounts } from '../../../lib/observe/flows/shared-counts.js'
import { FlowMessage } from '../../../lib/kernel/flow-message.js'
import { FlowThread } from '../../../lib/observe/flows/flow-thread.js'
import { FlowCounter } from '../../../lib/observe/flows/flow-counter.js'
import { ServedPorts } from '../../../lib/observe/flows/served-ports.js'
import { service, states } from '../../support/states.js'
import { SettableClock } from '../../../lib/observe/flows/settable-clock.js'
import type { FlowLine } from '../../../lib/observe/flows/line.js'
import type { ServedPort } from '../../../lib/observe/flows/messages.js'
import type { Refusal } from '../../../lib/observe/flows/refusals.js'

/** A message of a kernel about a new UDP flow from 127.0.0.1:34115 to 10.96.1.0:53. */
const bytes = Buffer.from(
  '020000003400018014000180080001007f000001080002000a6001001c0002800500010011000000060002008543000006000300003500003400028014000180080001000af40101080002007f0000011c0002800500010011000000060002001f400000060003008543000008000c00aa3fd67808000300000001a808000700000000010c001b0018ea84b39457f561',
  'hex',
)

function flow(): FlowMessage {
  const message = new FlowMessage()
  if (!message.read(bytes, 0, bytes.length)) throw new Error('the message is not read')
  return message
}

function begin(now: () => number) {
  const lines: FlowLine[] = []
  const sampler = { admits: () => true }
  const line = (one: FlowLine) => lines.push(one)
  const msSince = (startedAt: number) => now() - startedAt
  const counter = new FlowCounter({ now, msSince, sampler, line, maxEndpoints: 10 })
  const place = { family: 'IPv4', port: 53, addresses: ['10.96.1.0'], nodePort: 0 } as const
  const set = (['UDP', 'TCP'] as const).map((protocol) => {
    return { id: protocol, service: 'default/dns', protocol, ...place }
  })
  counter.change({ set, removed: [], localAddresses: [] })
  const opened = () => counter.take().grown.reduce((sum, each) => sum + each.opened, 0)
  return { counter, opened, lines }
}

/** Begins to read the table. The message is about a connection that began before. */
function beginListing() {
  const now = 1_000_000
  const begun = begin(() => now)
  begun.counter.missed(now - 1000)
  begun.counter.beginListing()
  const message = flow()
  message.startedAt = now - 500
  return { ...begun, message }
}

t.test('the kernel gives the id of a connection that has ended to a later one', (t) => {
  const { counter, opened, message } = beginListing()
  counter.listed(message)
  counter.endListing()
  counter.opened(flow())
  t.equal(opened(), 1, 'listed, and told a moment later')
  counter.ended(flow())
  counter.opened(flow())
  t.equal(opened(), 1, 'another one')
  t.end()
})

/** The same message, if no rule had translated its destination. */
const untranslated = Buffer.from(
  bytes.toString('hex').replace('0af40101', '0a600100').replace('1f40', '0035'),
  'hex',
)

t.test('what a program of the node answers itself is no connection to a Service', (t) => {
  const { counter, message } = beginListing()
  if (!message.read(untranslated, 0, untranslated.length)) throw new Error('it is not read')
  t.match(message, { destination: '10.96.1.0:53', endpoint: '10.96.1.0:53' })
  counter.listed(Object.assign(message, { startedAt: 999_500, bytesToEndpoint: 100 }))
  counter.endListing()
  t.match(counter.take(), { grown: [], open: [{ open: 0 }, { open: 0 }] })
  t.end()
})

t.test('events that are lost while the table is read make another reading due', (t) => {
  const { counter, opened, message } = beginListing()
  counter.missed()
  counter.endListing()
  t.ok(counter.isMissing)
  counter.beginListing()
  counter.listed(message)
  counter.endListing()
  t.equal(opened(), 1)
  t.notOk(counter.isMissing)
  t.end()
})

t.test('what was missed is counted by a later reading of the table if one fails', (t) => {
  const { counter, opened, message } = beginListing()
  counter.listed(message)
  counter.endListing()
  const { grown, open } = counter.take()
  t.match([grown, open], [[{ opened: 1 }], [{ open: 1 }, { open: 0 }]])
  counter.missed(message.startedAt - 1)
  for (let failures = 0; failures < 4; failures++) {
    counter.beginListing()
    counter.endListing(false)
    t.ok(counter.isMissing)
    t.same(counter.take().open, [], 'as before')
  }
  counter.beginListing()
  counter.listed(Object.assign(message, { id: 7 }))
  counter.endListing()
  t.equal(opened(), 1)
  t.notOk(counter.isMissing)
  t.end()
})

t.test('after a reading that failed, a connection may have the id of one that ended', (t) => {
  const { counter, opened } = beginListing()
  counter.endListing(false)
  for (let times = 0; times < 3; times++) {
    counter.opened(flow())
    counter.ended(flow())
  }
  t.equal(opened(), 3)
  for (let failures = 1; failures < 5; failures++) {
    counter.missed()
    counter.beginListing()
    counter.endListing(false)
  }
  t.notOk(counter.isMissing, 'given up, though more is missed each time')
  t.end()
})

t.test('bytes of a connection that ends after a reading of the table count once', (t) => {
  const { counter, message } = beginListing()
  const carried = { bytesToEndpoint: 100, bytesToClient: 70, packetsToEndpoint: 2 }
  counter.listed(Object.assign(message, carried))
  counter.endListing()
  t.match(counter.take().grown, [carried])
  counter.ended(message)
  t.same(counter.take().grown, [])
  t.end()
})

t.test('over a restart, an id tells only of connections until then', async (t) => {
  let now = 1_000_000
  const before = begin(() => now)
  now += 500
  before.counter.opened(flow())
  const file = join(t.testdir({}), 'flows.json')
  await saveCounts(file, before.counter.save())
  const listedLater = async (ms: number) => {
    const saved = await loadCounts(file)
    if (!saved) throw new Error('the numbers are not read')
    const { counter, opened } = begin(() => now + 2000)
    counter.resume(saved)
    counter.missed(saved.heardUntil)
    counter.beginListing()
    const message = flow()
    message.startedAt = now + ms
    counter.listed(message)
    counter.endListing()
    return opened()
  }
  t.equal(await listedLater(0.5), 1, 'the same')
  t.equal(await listedLater(1000), 2, 'another one with its id')
  writeFileSync(file, readFileSync(file, 'utf8').replace(/"savedAt":\d+,/, ''))
  t.equal(await listedLater(1000), 1, 'a file of an older version does not tell until when')
})

t.test('what ends while the table is read is not counted by it once more', (t) => {
  const { counter, opened, message } = beginListing()
  counter.opened(message)
  counter.ended(message)
  counter.listed(message)
  counter.endListing()
  t.equal(opened(), 1)
  t.end()
})

t.test('the line of the end tells what the client saw, as far as packets do', (t) => {
  const { counter, lines } = begin(() => 1_000_000)
  const tcp = { protocol: 6, hasCounters: true, packetsToEndpoint: 1, bytesToEndpoint: 60 }
  const ends: readonly (readonly [Partial<FlowMessage>, FlowLine['verdict'], string])[] = [
    [{ ...tcp, packetsToClient: 1, bytesToClient: 40 }, 'refused', 'ECONNREFUSED'],
    [{ ...tcp, packetsToClient: 0, bytesToClient: 0 }, 'refused', 'no answer'],
    [{ ...tcp, packetsToClient: 1, bytesToClient: 60 }, 'forwarded', ''],
    [{ ...tcp, packetsToClient: 5, bytesToClient: 900 }, 'forwarded', ''],
    [{ ...tcp, hasCounters: false }, 'forwarded', ''],
    [{ hasCounters: true }, 'forwarded', ''],
  ]
  for (const [numbers] of ends) counter.ended(Object.assign(flow(), numbers))
  t.same(
    lines.map(({ verdict, why }) => [verdict, why]),
    ends.map(([, ...told]) => told),
  )
  t.end()
})

t.test('what was refused and dropped is kept, and told with the time when it was heard', (t) => {
  const before = begin(() => 1_000_000)
  const refusal: Refusal = {
    ...{ at: 1_000_250, reason: '', family: 'IPv4', protocol: 17, sequence: 0 },
    ...{ destinationKey: flow().destinationKey, destinationPort: 53 },
    ...{ client: '192.0.2.7:40000', destination: '10.96.1.0:53' },
  }
  before.counter.refused(refusal)
  before.counter.take()
  before.counter.refused(refusal)
  before.counter.refused({ ...refusal, reason: 'no local endpoint' })
  t.same(new Set(before.lines.map(({ at }) => at)), new Set([1_000_250]))
  const dns = { service: 'default/dns', protocol: 'UDP' }
  t.same(before.counter.take().turnedAway, [{ ...dns, refused: 1, dropped: 1 }])
  const after = begin(() => 1_001_000)
  after.counter.resume(before.counter.save())
  after.counter.refused(refusal)
  t.same(after.counter.take().turnedAway, [{ ...dns, refused: 3, dropped: 1 }])
  t.same(after.counter.take().turnedAway, [])
  t.end()
})

t.test('of Services at one address the first by name counts, and the next when it goes', (t) => {
  const { counter } = begin(() => 1_000_000)
  const port = (name: string, addresses = ['10.96.1.0']): ServedPort => {
    const place = { family: 'IPv4', protocol: 'UDP', port: 53, nodePort: 0 } as const
    return { id: `IPv4 d/${name}/UDP`, service: `d/${name}`, addresses, ...place }
  }
  const change = (set: readonly ServedPort[], ...removed: readonly string[]) =>
    counter.change({ set, removed, localAddresses: [] })
  let id = 0
  const counted = () => {
    counter.opened(Object.assign(flow(), { id: ++id }))
    return counter.take().grown.map(({ service }) => service)
  }
  change([port('b'), port('a'), port('c')], 'UDP')
  t.same(counted(), ['d/a'])
  change([port('a', ['10.96.1.1'])])
  t.same(counted(), ['d/b'], 'one has another address now')
  change([port('a')])
  t.same(counted(), ['d/a'], 'and this one again')
  change([], 'IPv4 d/a/UDP')
  t.same(counted(), ['d/b'])
  change([], 'IPv4 d/b/UDP', 'IPv4 d/c/UDP')
  t.same(counted(), ['d/c'], 'the last one is still found')
  change([port('z')])
  t.same(counted(), ['d/z'], 'until another comes')
  t.end()
})

/** A UDP flow to one of many endpoints. */
const flowTo = (id: number) =>
  Object.defineProperties(Object.assign(flow(), { id }), {
    endpointKey: { value: id },
    endpoint: { value: `10.244.1.${id}:8053` },
  })

t.test('endpoints that have left make room, once no connection is left', (t) => {
  const { counter } = begin(() => 1_000_000)
  const names = { service: 'default/dns', protocol: 'UDP' } as const
  const ids = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
  const at = (id: number) => flowTo(id).endpoint
  /** Reads the table with these flows, and then the numbers. */
  const take = (...living: readonly number[]) => {
    counter.beginListing()
    for (const id of living) counter.listed(flowTo(id))
    counter.endListing()
    return counter.take()
  }
  for (const id of ids) counter.opened(flowTo(id))
  counter.opened(flowTo(11))
  t.ok(take(...ids, 11).grown.some(({ endpoint }) => endpoint === 'other'))
  counter.present([{ ...names, endpoints: [at(1), at(11)] }])
  t.same(take(1, 2, 3, 11).left.length, 7, 'those without connections')
  counter.opened(flowTo(2))
  t.same(take(1).left, [
    { ...names, endpoint: at(3) },
    { ...names, endpoint: 'other' },
  ])
  t.same(counter.take().left, [], 'the table has not been read again')
  counter.beginListing()
  counter.endListing(false)
  t.same(counter.take().left, [], 'the table could not be read')
  t.same(take(1).left, [{ ...names, endpoint: at(2) }])
  counter.opened(flowTo(12))
  t.match(take(1, 12).grown, [{ endpoint: at(12), opened: 1 }], 'there is room')
  t.same(
    counter.save().counts.map(({ endpoint }) => endpoint),
    [at(1), at(12)],
  )
  t.end()
})

t.test('an endpoint goes on with its own numbers after a restart, in a full table, too', (t) => {
  const before = begin(() => 1_000_000)
  for (let id = 1; id <= 10; id++) before.counter.opened(flowTo(id))
  const { counter } = begin(() => 1_001_000)
  counter.resume({ ...before.counter.save(), recent: [] })
  counter.take()
  counter.opened(flowTo(3))
  counter.opened(flowTo(11))
  t.match(counter.take().grown, [{ endpoint: '10.244.1.3:8053' }, { endpoint: 'other' }])
  const third = counter.save().counts.filter(({ endpoint }) => endpoint === '10.244.1.3:8053')
  t.match(third, [{ opened: 2 }], 'in one row')
  t.end()
})

t.test('the thread is told the endpoints of Services that have changed, of both families', (t) => {
  const ports = new ServedPorts()
  const cluster = states().put(service({ endpoints: 2 }), service({ name: 'api', endpoints: 1 }))
  const present = () => {
    ports.changes([cluster.take()])
    return ports.takePresent().map(({ service, endpoints }) => [service, endpoints.length])
  }
  t.same(
    new Map(present() as [string, number][]),
    new Map([
      ['default/web:http', 2],
      ['default/api:http', 1],
    ]),
  )
  t.same(present(), [])
  cluster.put(service({ endpoints: 3 }))
  t.same(present(), [['default/web:http', 3]])
  cluster.remove(service())
  t.same(present(), [])
  t.end()
})

t.test('a cleanup removes the numbers of this network namespace, and no others', async (t) => {
  const file = join(t.testdir(), 'flows.json')
  const none = { heardUntil: 0, savedAt: 0, recent: [], counts: [], turnedAway: [] }
  await saveCounts(file, none)
  const own = readFileSync(file, 'utf8')
  writeFileSync(file, own.replace(/"kernel":"[0-9a-f]/, '"kernel":"-'))
  await removeCounts(file)
  t.ok(existsSync(file), 'another proxy goes on with it')
  writeFileSync(file, own)
  writeFileSync(`${file}.lock`, '')
  await removeCounts(file)
  t.same(readdirSync(dirname(file)), [], 'nor the lock of userspace mode')
})

t.test('the time in which modes carry connections ends where another mode counts', async (t) => {
  const file = join(t.testdir(), 'flows.json')
  const none = { heardUntil: 9, savedAt: 0, recent: [], counts: [], turnedAway: [] }
  const sinceAfter = async (until: number) => {
    await saveCounts(file, { ...none, carried: { since: 5, until } })
    const counts = new SharedCounts(file, { save: () => none, add: () => undefined })
    await counts.catchUp()
    await counts.save()
    return (await loadCounts(file))?.carried?.since ?? 0
  }
  t.equal(await sinceAfter(9), 5, 'a restart goes on with it')
  t.ok((await sinceAfter(7)) > 9, 'another mode has counted from 7 to 9')
})

t.test(
  'a proxy that ends before it knows any Service keeps the numbers of the one before',
  async (t) => {
    const stateFile = join(t.testdir(), 'flows.json')
    const bytes = { bytesToEndpoint: 1, bytesToClient: 1, packetsToEndpoint: 1, packetsToClient: 1 }
    const endpoint = {
      service: 'default/web',
      protocol: 'TCP',
      endpoint: '10.244.1.21:80',
    } as const
    const counts = [{ ...endpoint, ...bytes, opened: 7 }]
    await saveCounts(stateFile, { heardUntil: 1, savedAt: 1, recent: [], counts, turnedAway: [] })
    const before = readFileSync(stateFile, 'utf8')
    const kernel = { hearsConnections: true, onlyTranslated: true, refusalGroup: undefined }
    const thread = new FlowThread({ ...kernel, stateFile, startedAt: 0 }, () => undefined)
    await thread.stop()
    t.equal(readFileSync(stateFile, 'utf8'), before)
  },
)

t.test(
  'a mode that carries connections counts without the file if it may not see it',
  async (t) => {
    const folder = join(t.testdir({}), 'circle')
    symlinkSync(folder, folder)
    const reports: string[] = []
    const kernel = { hearsConnections: false, onlyTranslated: true, refusalGroup: undefined }
    const settings = { ...kernel, stateFile: join(folder, 'flows.json'), startedAt: 0 }
    const thread = new FlowThread(settings, ({ kind }) => {
      reports.push(kind)
      // Otherwise a question that nobody answers keeps the test from its end.
      if (kind === 'failed') void thread.stop()
    })
    thread.tell({ kind: 'services', set: [], removed: [], localAddresses: [] })
    t.match(await thread.numbers([]), { grown: [] })
    await thread.stop()
    t.same(reports, ['warning'], 'the numbers could not be kept')
  },
)

t.test('how long a connection lasted is not told if the clock was set meanwhile', (t) => {
  let [now, steady] = [10_000, 0]
  const clock = new SettableClock({ now: () => now, steady: () => steady })
  const go = (ms: number, setByMs = 0) => {
    steady += ms
    now += ms + setByMs
    clock.look()
  }
  go(5000)
  t.equal(clock.lookedAt, 15_000)
  t.equal(clock.msSince(14_000), 1000)
  t.equal(clock.msSince(15_001), 0, 'the kernel tells times with parts of milliseconds')
  go(1000, 3_600_000)
  t.equal(clock.msSince(15_500), undefined, 'set forward')
  go(2000)
  t.equal(clock.msSince(now - 1500), 1500, 'what began later is told')
  go(1000, -60_000)
  t.equal(clock.msSince(now + 59_500), undefined, 'set back')
  go(1000)
  t.equal(clock.msSince(now - 500), undefined, 'it may have begun a minute before')
  go(61_000)
  t.equal(clock.msSince(now - 500), 500)
  const began = now
  go(0, -60_000)
  for (const setByMs of [-1000, 1000]) {
    go(1000, setByMs)
    t.equal(clock.msSince(began), undefined, 'set once more, by less')
  }
  t.end()
})

t.test('a thread that is held up while it asks for the time has set no clock', (t) => {
  let [now, steady, heldMs] = [10_000, 0, 0]
  const clock = new SettableClock({
    now: () => now,
    steady() {
      const told = steady
      // Between this answer and the next one.
      steady += heldMs
      now += heldMs
      return told
    },
  })
  for (heldMs of [500, 0, 0, 700, 900, 0]) clock.look()
  t.equal(clock.msSince(9000), now - 9000)
  t.end()
})
