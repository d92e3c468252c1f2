/** Endpoints that accept connections and do not serve them, with each data path. */
import { once } from 'node:events'
import { connect, createServer, type Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import t, { type Test } from 'tap'
import {
  dataPathLoaders,
  type DataPath,
} from '../../../lib/modes/userspace/datapath/create-data-path.js'
import type { EndpointChoice } from '../../../lib/modes/userspace/datapath/data-path.js'
import { DescriptorBudget } from '../../../lib/modes/userspace/datapath/descriptors.js'
import { firstByteAnnotation } from '../../../lib/state/connection-annotations.js'
import { blockFor } from '../../support/block.js'

const host = '127.0.0.1'

for (const [name, load] of Object.entries(dataPathLoaders)) {
  t.test(`data path ${name}`, (t) => {
    t.test('an endpoint that resets at once is tried last, longer each time', async (t) => {
      const { clock, tally, counts } = await open(t, load, { bad: reset, good: speak })
      t.same(await tally(6), { good: 5, closed: 1 }, 'after the first reset nobody goes there')
      clock.now = 1_000
      t.same(await tally(6), { good: 5, closed: 1 }, 'one client finds out that it still does it')
      clock.now = 2_999
      t.same(await tally(6), { good: 6 }, 'the second time it waits twice as long')
      clock.now = 3_000
      t.same(await tally(6), { good: 5, closed: 1 })
      t.equal((await counts('bad')).resets, 3)
    })

    t.test('an endpoint that answers again is used as before', async (t) => {
      const serve = { bad: reset }
      const bad = (socket: Socket) => serve.bad(socket)
      const { clock, tally } = await open(t, load, { bad, good: speak })
      t.same(await tally(6), { good: 5, closed: 1 })
      serve.bad = speak
      clock.now = 1_000
      t.match(await tally(6), { bad: 3, good: 3 })
    })

    t.test('a reset after the client has ended, or late, says nothing about it', async (t) => {
      const bad = (socket: Socket) => socket.resume().once('end', () => socket.resetAndDestroy())
      const { clock, connections, dial, counts } = await open(t, load, { bad })
      const early = await dial()
      early.resume().end()
      await closed(early)
      const late = await dial()
      const second = await connections(2)
      late.resume()
      clock.now = 1_000
      second.resetAndDestroy()
      await closed(late)
      t.equal((await counts('bad')).resets, 0)
    })

    t.test('a silent endpoint is used again if its connection stays open', async (t) => {
      const serve = { bad: reset }
      const bad = (socket: Socket) => serve.bad(socket)
      const { clock, tally, dial, connections } = await open(t, load, { bad, good: speak })
      t.same(await tally(6), { good: 5, closed: 1 })
      serve.bad = silent
      clock.now = 1_000
      const found = connections(2)
      await dial()
      await dial()
      await found
      // The clock stands still, so only the proof makes the endpoint usable again.
      const again = connections(3)
      const timer = setInterval(() => void dial(), 50)
      await again
      clearInterval(timer)
    })

    t.test('first-byte-timeout: an endpoint that does not answer is tried last', async (t) => {
      const serve = { bad: silent }
      const bad = (socket: Socket) => serve.bad(socket)
      // Long enough that the good endpoint is not late, too, on a busy machine.
      const choice = { firstByteMs: 2_000 }
      const { clock, tally, dial, connections, counts } = await open(
        t,
        load,
        { bad, good: speak },
        choice,
      )
      const clients = [await dial(), await dial()]
      const slow = await connections(1)
      for (const client of clients) client.write('?')
      t.equal((await counts('bad', 'lateAnswers')).lateAnswers, 1)
      t.same(await tally(6), { good: 6 })
      const answers = clients.map((client) => once(client, 'data'))
      slow.write('bad')
      t.same((await Promise.all(answers)).map(String).toSorted(), ['bad', 'good'], 'it went on')
      serve.bad = speak
      clock.now = 1_000
      t.same(await tally(6), { bad: 3, good: 3 })
    })

    t.test('first-byte-timeout: an answer is in time if only its reading was late', async (t) => {
      const good = (socket: Socket) =>
        socket.once('data', () => {
          socket.write('good')
          blockFor(400)
        })
      const { tally, counts } = await open(t, load, { good }, { firstByteMs: 200 })
      t.same(await tally(2), { good: 2 })
      t.equal((await counts('good')).lateAnswers, 0)
    })

    t.test('first-byte-timeout: a client that asks nothing waits for nothing', async (t) => {
      const { dial, connections, counts } = await open(
        t,
        load,
        { bad: silent },
        { firstByteMs: 100 },
      )
      await dial()
      await connections(1)
      await sleep(500)
      t.equal((await counts('bad')).lateAnswers, 0)
    })
    t.end()
  })
}

t.test('the annotation is read within bounds', async (t) => {
  t.equal(firstByteAnnotation.parse('2s'), 2_000)
  for (const text of ['', '99ms', '2', '11m']) t.equal(firstByteAnnotation.parse(text), undefined)
})

/** Resets after the first bytes: an earlier reset could look like a failed dial. */
function reset(socket: Socket): void {
  socket.once('data', () => socket.resetAndDestroy())
}

function silent(socket: Socket): void {
  socket.resume()
}

function speak(socket: Socket, name = 'bad'): void {
  socket.once('data', () => socket.end(name))
}

function closed(socket: Socket): Promise<void> {
  return new Promise((told) => socket.once('close', () => told()))
}

type Serve = (socket: Socket, name: string) => unknown

/** A listener with these endpoints, and a clock that stands still. */
async function open(
  t: Test,
  load: (typeof dataPathLoaders)['net' | 'splice'],
  serves: Readonly<Partial<Record<'good' | 'bad', Serve>>>,
  choice: Partial<EndpointChoice> = {},
) {
  const clock = { now: 0 }
  const atBad: Socket[] = []
  const endpoints = []
  for (const [name, serve] of Object.entries(serves)) {
    const server = createServer((socket) => {
      if (name === 'bad') atBad.push(socket)
      serve(
        socket.on('error', () => undefined),
        name,
      )
    })
    server.listen(0, host)
    await once(server, 'listening')
    t.teardown(() => void server.close())
    const address = server.address()
    const port = typeof address === 'object' && address ? address.port : 0
    endpoints.push({ key: name, ip: host, port })
  }
  const path = (await load())({
    ...{ now: () => clock.now, random: Math.random, passiveHealth: true },
    descriptors: new DescriptorBudget(DescriptorBudget.allocate(200)),
    ...{ accessLog: undefined, warn: () => undefined },
  })
  const port = await path.open({
    ...{ key: 'web', service: 'default/web', protocol: 'TCP', address: host, port: 0, endpoints },
    ...{ servingKeys: [], affinityMs: undefined, udpIdleMs: 1000 },
    ...choice,
  })
  const open: Socket[] = []
  t.teardown(async () => {
    for (const socket of [...open, ...atBad]) socket.destroy()
    await path.drain(0)
  })
  const dial = async () => {
    const client = connect(port, host).on('error', () => undefined)
    open.push(client)
    await once(client, 'connect')
    return client
  }
  const ask = async () => {
    const client = await dial()
    client.write('?')
    return new Promise<string>((told) => {
      client.once('data', (bytes) => told(String(bytes))).once('close', () => told('closed'))
    })
  }
  /** Makes connections one after the other and counts who answered. */
  const tally = async (count: number) => {
    const seen: Record<string, number> = {}
    for (let each = 0; each < count; each++) {
      const name = await ask()
      seen[name] = (seen[name] ?? 0) + 1
    }
    return seen
  }
  /** Waits for the connection of this number at the bad endpoint. */
  const connections = async (count: number) => {
    for (;;) {
      const socket = atBad[count - 1]
      if (socket) return socket
      await sleep(5)
    }
  }
  return { clock, dial, tally, connections, counts: counter(path) }
}

/** Sums the counts of endpoints. With `awaited` it waits until that count is not zero. */
function counter(path: DataPath) {
  const sums = new Map<string, { resets: number; lateAnswers: number }>()
  return async (key: string, awaited?: 'resets' | 'lateAnswers') => {
    for (;;) {
      for (const { endpoint, resets, lateAnswers } of path.takeCounts()[0]?.endpoints ?? []) {
        const sum = sums.get(endpoint) ?? { resets: 0, lateAnswers: 0 }
        sums.set(endpoint, sum)
        sum.resets += resets
        sum.lateAnswers += lateAnswers
      }
      const sum = sums.get(key) ?? { resets: 0, lateAnswers: 0 }
      if (awaited === undefined || sum[awaited] > 0) return sum
      await sleep(5)
    }
  }
}
