/** Limits of connections, and connections that end with their endpoint, with each data path. */
import { once } from 'node:events'
import { connect, createServer, type Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import t, { type Test } from 'tap'
import {
  dataPathLoaders,
  type DataPath,
} from '../../../lib/modes/userspace/datapath/create-data-path.js'
import { DescriptorBudget } from '../../../lib/modes/userspace/datapath/descriptors.js'
import { endpointChanges } from '../../../lib/modes/userspace/datapath/data-path.js'
import {
  maxConnectionsAnnotation,
  removalAnnotation,
} from '../../../lib/state/connection-annotations.js'
import type {
  DataPathDeps,
  EndpointChoice,
  ListenerSpec,
} from '../../../lib/modes/userspace/datapath/data-path.js'

const host = '127.0.0.1'

for (const [name, load] of Object.entries(dataPathLoaders)) {
  t.test(`data path ${name}`, async (t) => {
    const create = await load()

    t.test('max-connections: the next endpoint, then a wait, then refused', async (t) => {
      const { dial, end, settled } = await open(t, create, ['a', 'b'], { maxConnections: 1 })
      const first = await dial()
      const second = await dial()
      t.same([first.name, second.name].toSorted(), ['a', 'b'])
      await t.rejects(dial(), 'both have their one connection, also after the wait')
      const waiting = dial()
      end(first)
      t.equal((await waiting).name, first.name, 'who waits gets the place that is free')
      end(second)
      t.equal((await dial()).name, second.name)
      await settled()
    })

    t.test('max-connections: clients wait also while another endpoint is dead', async (t) => {
      const { dial, end, kill, refused } = await open(t, create, ['a', 'b'], { maxConnections: 1 })
      const all = [await dial(), await dial()]
      const [first, second] = all[0]?.name === 'a' ? all : all.toReversed()
      if (!first || !second) throw new Error('two connections')
      await kill('b')
      await once(second.socket, 'close')
      const waiting = dial()
      const isWaiting = Promise.race([waiting.then(() => false), refused('b').then(() => true)])
      t.ok(await isWaiting, 'the dead endpoint has room, and was tried')
      end(first)
      t.equal((await waiting).name, 'a')
      await t.rejects(dial(), 'there is no room in time')
    })

    t.test('max-connections: who came first goes first', async (t) => {
      const { dial, end } = await open(t, create, ['a'], { maxConnections: 1 })
      const order: string[] = []
      const client = async (name: string) => {
        const connection = await dial()
        order.push(name)
        return connection
      }
      const names = ['early', 'late']
      let holder = await dial()
      for (let round = 0; round < 4; round++) {
        const early = client('early')
        end(holder)
        await once(holder.socket, 'close')
        const late = client('late')
        end(await early)
        holder = await late
        t.same(order.splice(0), names)
      }
    })

    t.test('max-connections: without it an endpoint takes any number', async (t) => {
      const { dial } = await open(t, create, ['a'], {})
      t.same(
        (await Promise.all([dial(), dial(), dial()])).map(({ name }) => name),
        ['a', 'a', 'a'],
      )
    })

    t.test('reset-after: connections to an endpoint that left end, others go on', async (t) => {
      const { dial, update } = await open(t, create, ['a', 'b'], { resetAfterMs: 50 })
      const all = [await dial(), await dial()]
      const [left, stays] = all[0]?.name === 'a' ? all : all.toReversed()
      if (!left || !stays) throw new Error('two connections')
      const ended = once(left.socket, 'error')
      update(['b'], { resetAfterMs: 50, servingKeys: ['a'] })
      update(['b'], { resetAfterMs: 50, servingKeys: [] })
      t.match(await ended, [{ code: 'ECONNRESET' }])
      t.equal(await stays.ask(), 'b')
    })

    t.test(
      'reset-after: an endpoint that serves or comes back keeps its connections',
      async (t) => {
        const { dial, update } = await open(t, create, ['a', 'b', 'c'], { resetAfterMs: 50 })
        const all = [await dial(), await dial(), await dial()]
        const of = (name: string) => all.find((each) => each.name === name)
        const third = of('c')
        if (!third) throw new Error('c has no connection')
        const ended = once(third.socket, 'error')
        update(['b'], { resetAfterMs: 50, servingKeys: ['a'] })
        t.match(await ended, [{ code: 'ECONNRESET' }], 'the time of the others is over, too')
        t.equal(await of('a')?.ask(), 'a', 'it terminates, and may finish')
        update(['b'], { resetAfterMs: 3_600_000, servingKeys: [] })
        update(['a', 'b'], { resetAfterMs: 50, servingKeys: [] })
        t.equal(await of('a')?.ask(), 'a')
      },
    )
  })
}

t.test('the annotations are read within bounds', async (t) => {
  const { parse } = removalAnnotation
  t.same(parse('keep'), { resetAfterMs: undefined })
  t.same(parse('reset-after=30s'), { resetAfterMs: 30_000 })
  for (const text of ['', 'reset', 'reset-after=', 'reset-after=0s', 'reset-after=2h', 'keep ']) {
    t.equal(parse(text), undefined, JSON.stringify(text))
  }
  t.equal(maxConnectionsAnnotation.parse('1000'), 1000)
  for (const text of ['0', '-1', '1e3', '', '1000001']) {
    t.equal(maxConnectionsAnnotation.parse(text), undefined, text)
  }
})

/** Endpoints that answer with their name, and clients that keep their connection. */
async function open(
  t: Test,
  create: (deps: DataPathDeps) => DataPath,
  names: readonly string[],
  choice: Partial<EndpointChoice>,
) {
  const targets = await Promise.all(names.map((name) => serve(t, name)))
  const path = create({
    ...{ now: () => performance.now(), random: Math.random, passiveHealth: true },
    descriptors: new DescriptorBudget(DescriptorBudget.allocate(200)),
    ...{ accessLog: undefined, warn: () => undefined },
  })
  const spec: ListenerSpec = {
    ...{ key: 'web', service: 'default/web', protocol: 'TCP', address: host, port: 0 },
    endpoints: targets.map(({ target }) => target),
    ...{ servingKeys: [], affinityMs: undefined, udpIdleMs: 1000 },
    ...choice,
  }
  const port = await path.open(spec)
  t.teardown(() => path.drain(0))
  let endpoints = spec.endpoints
  const keysOf = (of: readonly string[]) =>
    targets.filter(({ name }) => of.includes(name)).map(({ target }) => target)
  const update = (of: readonly string[], next: Partial<EndpointChoice>) => {
    const servingKeys = keysOf(next.servingKeys ?? []).map(({ key }) => key)
    const wanted = { affinityMs: undefined, ...next, servingKeys, endpoints: keysOf(of) }
    path.update(spec.key, endpointChanges(endpoints, wanted))
    endpoints = wanted.endpoints
  }
  const dial = async () => {
    const socket = connect(port, host)
    t.teardown(() => socket.destroy())
    const name = await ask(socket)
    return { socket, name, ask: () => ask(socket) }
  }
  const end = ({ socket }: { readonly socket: Socket }) => void socket.end()
  const settled = () => path.drain(0)
  /** The endpoint ends with its connections, and refuses new ones. */
  const kill = (name: string) => targets.find((each) => each.name === name)?.kill()
  /** Waits until a dial to the endpoint has failed. */
  const refused = async (name: string) => {
    const key = keysOf([name])[0]?.key
    const isRefused = () =>
      path
        .takeCounts()
        .some(({ endpoints }) =>
          endpoints.some(({ endpoint, dialErrors }) => endpoint === key && dialErrors > 0),
        )
    while (!isRefused()) await sleep(5)
  }
  return { dial, end, update, settled, kill, refused }
}

async function ask(socket: Socket): Promise<string> {
  socket.write('?')
  const [answer] = (await Promise.race([
    once(socket, 'data'),
    once(socket, 'close').then(() => {
      throw new Error('closed')
    }),
  ])) as [Buffer]
  return String(answer)
}

async function serve(t: Test, name: string) {
  const sockets = new Set<Socket>()
  const server = createServer((socket) => {
    sockets.add(socket)
    socket.on('error', () => undefined)
    socket.on('data', () => socket.write(name))
  })
  server.listen(0, host)
  await once(server, 'listening')
  t.teardown(() => void server.close())
  const address = server.address()
  const port = typeof address === 'object' && address ? address.port : 0
  const kill = async () => {
    const closed = once(server.close(), 'close')
    for (const socket of sockets) socket.destroy()
    await closed
  }
  return { name, kill, target: { key: `${host}:${port}`, ip: host, port } }
}
