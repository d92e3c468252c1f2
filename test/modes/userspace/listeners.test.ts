/** The listeners of userspace mode on their worker threads, with real sockets on loopback. */
import { spawn } from 'node:child_process'
import { randomInt } from 'node:crypto'
import { once } from 'node:events'
import { connect, createServer, type Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { KernelError } from '../../../lib/errors.js'
import { loadLibc } from '../../../lib/kernel/sockets/libc.js'
import { DescriptorBudget } from '../../../lib/modes/userspace/datapath/descriptors.js'
import { Listeners } from '../../../lib/modes/userspace/listeners/listeners.js'
import type {
  AccessEntry,
  ListenerSpec,
  Target,
} from '../../../lib/modes/userspace/datapath/data-path.js'
import type { Test } from 'tap'

const host = '127.0.0.1'
const copyCloseOnExec = 1030
// Otherwise only workers have koffi, and the end of one would end these tests.
const libc = await loadLibc()
const meter = { count() {}, gauge() {}, observe() {}, forget() {} }

t.test('many listeners at once: each opens, gets its new endpoints, and closes', async (t) => {
  const [here, there] = [await answering(t, 'here'), await answering(t, 'there')]
  const names = Array.from({ length: 70 }, (_, index) => `s${index}`)
  const specs = (...endpoints: readonly Target[]) =>
    names.map((name) => ({ ...specOf(name, 'TCP'), endpoints }))
  const { listeners } = createListeners(t)
  t.same(await listeners.ensure(specs(here)), [])
  const open = specs(here).map(({ key }) => key)
  const ports = open.map((key) => listeners.portOf(key) ?? 0)
  const answers = async () => [...new Set(await Promise.all(ports.map(ask)))]
  t.same(await answers(), ['here'])
  await listeners.ensure(specs(there))
  t.same(await answers(), ['there'])
  // The worker gets the changes since the last message, not since the beginning.
  await listeners.ensure(specs(here))
  t.same(await answers(), ['here'])
  await listeners.close(open)
  const refused = await Promise.allSettled(ports.map(ask))
  t.ok(refused.every(({ status }) => status === 'rejected'))
})

for (const dataPath of ['net', 'splice'] as const) {
  t.test(
    `${dataPath}: a worker that ends is replaced, and its listeners are opened again`,
    async (t) => {
      const target = await answering(t, 'here')
      const [, port] = await neighbours(t)
      const specs = ['a', 'b', 'c', 'd'].map((name) => ({
        ...specOf(name, 'TCP'),
        endpoints: [target],
      }))
      const udp = { ...specOf('e', 'UDP'), port }
      const { listeners, lost } = createListeners(t, { dataPath })
      t.same(await listeners.ensure([...specs, udp]), [])
      const ports = () => specs.map(({ key }) => listeners.portOf(key) ?? 0)
      t.same(await Promise.all(ports().map(ask)), ['here', 'here', 'here', 'here'])

      // No plan looks like this. It plays a mistake in our code.
      const poison = { ...udp, servingKeys: 1 } as unknown as ListenerSpec
      await t.rejects(listeners.ensure([poison]), KernelError)
      t.equal(lost.length, 1)
      const survivors = specs.flatMap(({ key }) => listeners.portOf(key) ?? [])
      t.ok(
        survivors.length > 0 && survivors.length < specs.length,
        'only those of one worker are gone',
      )
      t.same([...new Set(await Promise.all(survivors.map(ask)))], ['here'], 'the others go on')
      t.same(await listeners.ensure([...specs, udp]), [], 'also at the same port')
      t.same(await Promise.all(ports().map(ask)), ['here', 'here', 'here', 'here'])
    },
  )

  t.test(`${dataPath}: clients of a worker that ends learn it`, async (t) => {
    const spec = { ...specOf('a', 'TCP'), endpoints: [await answering(t, 'here', true)] }
    const { listeners, closed, lost, lostKeys } = createListeners(t, { dataPath })
    t.same(await listeners.ensure([spec]), [])
    const open = () => connect({ host, port: listeners.portOf(spec.key) ?? 0 })
    const { left } = listeners.descriptors
    const client = open()
    await once(client, 'data')
    t.equal(listeners.descriptors.left, left - 2)
    const ended = endOf(client)
    // This mistake comes with an event of a socket, not with a message.
    const nowhere = { key: 'x', ip: 1, port: 1 } as unknown as Target
    await listeners.ensure([{ ...spec, endpoints: [nowhere] }])
    const last = open()
    await endOf(last)
    const end = await ended
    while (lost.length === 0) await sleep(5)
    if (dataPath === 'splice') t.equal(end, 'ECONNRESET')
    t.same(await listeners.ensure([spec]), [])
    t.equal(listeners.descriptors.left, left, 'the next worker has their descriptors')
    t.equal(await ask(listeners.portOf(spec.key) ?? 0), 'here')
    t.match(lost, [/worker ended/])
    t.same(lostKeys, [spec.key])
    await listeners.close([spec.key, 'one that ended with its worker'])
    t.same(
      closed,
      [spec.key, 'one that ended with its worker'],
      'its numbers are not wanted any more',
    )
  })
}

t.test('connections that are cut when the proxy stops are in the access log', async (t) => {
  const spec = { ...specOf('a', 'TCP'), endpoints: [await answering(t, 'here', true)] }
  const { listeners, logged } = createListeners(t)
  await listeners.ensure([spec])
  const client = connect({ host, port: listeners.portOf(spec.key) ?? 0 })
  await once(client, 'data')
  const ended = endOf(client)
  await listeners.drain(0)
  t.equal(await ended, 'ECONNRESET')
  t.match(logged, [{ service: spec.service, bytesToClient: 4 }])
})

t.test('a sample of the connections has all of a burst', async (t) => {
  const spec = { ...specOf('a', 'TCP'), endpoints: [await answering(t, 'here', true)] }
  const { listeners, logged } = createListeners(t, { accessLog: 'sample' })
  await listeners.ensure([spec])
  const port = listeners.portOf(spec.key) ?? 0
  await Promise.all(Array.from({ length: 60 }, () => ask(port)))
  await listeners.drain(0)
  t.equal(logged.length, 60)
})

t.test('a process that has koffi only in its workers survives their end', async (t) => {
  const script = `
    const { createListeners } = await import(process.argv[1])
    const none = () => undefined
    const context = { log: { info: none, warn: none, error: none }, meter: { gauge: none, count: none } }
    const settings = { workers: 1, datapath: 'splice', passiveHealth: true }
    const listeners = createListeners(settings, context)
    await listeners.ensure(JSON.parse(process.argv[2]))
    await listeners.drain(0)
    console.log('survived')`
  const file = new URL(
    '../../../lib/modes/userspace/listeners/create-listeners.js',
    import.meta.url,
  )
  const specs = JSON.stringify([specOf('a', 'TCP')])
  const child = spawn(
    process.execPath,
    ['--input-type=module', '-e', script, '--', file.href, specs],
    { env: {}, stdio: ['ignore', 'pipe', 'inherit'] },
  )
  let said = ''
  child.stdout.on('data', (chunk: Buffer) => (said += chunk.toString()))
  const [code, signal] = (await once(child, 'close')) as [number | null, string | null]
  t.same({ code, signal, said }, { code: 0, signal: null, said: 'survived\n' })
})

t.test('US34: ports in use are skipped, and failures are reported', async (t) => {
  const [held, free] = await neighbours(t)
  const { listeners, closed } = createListeners(t, { range: { from: held, to: free } })
  const specs = [specOf('a', 'TCP'), specOf('b', 'TCP')]
  const failures = await listeners.ensure(specs)
  t.equal(failures.length, 1)
  t.match(failures, [{ code: 'ERANGE' }])
  const open = specs.filter(({ key }) => listeners.portOf(key) !== undefined)
  t.same(
    open.map(({ key }) => listeners.portOf(key)),
    [free],
  )
  const keys = open.map(({ key }) => key)
  await listeners.close(keys)
  t.same(closed, keys)
  const [spec] = specs
  t.same(await listeners.ensure(spec ? [spec] : []), [], 'a closed listener gives its port back')
})

t.test('a socket that no descriptor is left for is given back to be closed', async (t) => {
  const spec = specOf('a', 'TCP')
  const { key, protocol, address } = spec
  const given = { key, protocol, address, port: 20_000, descriptor: 99 }
  const { listeners } = createListeners(t, { range: { from: 20_000, to: 20_000 }, descriptors: 1 })
  listeners.receive([given])
  t.match(await listeners.ensure([spec]), [{ code: 'EMFILE' }])
  t.same(listeners.unused(), [given])
})

t.test('the range and the ports that Services choose do not mix', async (t) => {
  const port = (await neighbours(t))[1]
  const { listeners } = createListeners(t, { range: { from: port, to: port } })
  const fixed = { ...specOf('fixed', 'UDP'), port }
  t.same(await listeners.ensure([specOf('a', 'TCP'), fixed]), [])
  await listeners.close([fixed.key])
  t.match(await listeners.ensure([specOf('b', 'UDP')]), [{ code: 'ERANGE' }], 'it has one user')
})

t.test('a port that a Service chose is taken over, whatever the range', async (t) => {
  const [outside, port] = await neighbours(t)
  const spec = { ...specOf('a', 'TCP'), port, endpoints: [await answering(t, 'here')] }
  const old = createListeners(t).listeners
  t.same(await old.ensure([spec]), [])
  const { listeners } = createListeners(t, { range: { from: outside, to: outside } })
  listeners.receive(await old.give((descriptor) => libc.fcntl(descriptor, copyCloseOnExec, 0)))
  t.same(await listeners.ensure([spec]), [])
  t.equal(await ask(port), 'here')
})

function specOf(name: string, protocol: 'TCP' | 'UDP'): ListenerSpec {
  return {
    key: `IPv4 default/${name}/${protocol} cluster`,
    service: `default/${name}`,
    protocol,
    address: host,
    port: 0,
    endpoints: [],
    servingKeys: [],
    affinityMs: undefined,
    udpIdleMs: 250,
  }
}

/** An endpoint that sends its name and ends the connection, or keeps it. */
async function answering(t: Test, name: string, keeps = false): Promise<Target> {
  const server = createServer((socket) => {
    socket.on('error', () => undefined)
    if (keeps) socket.write(name)
    else socket.end(name)
  }).listen(0, host)
  await once(server, 'listening')
  t.teardown(() => server.close())
  const address = server.address()
  const port = typeof address === 'object' && address ? address.port : 0
  return { key: `${host}:${port}`, ip: host, port }
}

/** Two ports in a row, of which this test holds the first. */
async function neighbours(t: Test): Promise<readonly [number, number]> {
  for (;;) {
    // The system gives programs that want any port one above these.
    const port = randomInt(10_000, 30_000)
    const [first, second] = [
      createServer().listen(port, host),
      createServer().listen(port + 1, host),
    ]
    const areFree = await Promise.all([once(first, 'listening'), once(second, 'listening')]).then(
      () => true,
      () => false,
    )
    second.close()
    if (areFree) {
      t.teardown(() => first.close())
      return [port, port + 1]
    }
    first.close()
  }
}

interface CreateOptions {
  readonly range?: { readonly from: number; readonly to: number }
  readonly descriptors?: number
  readonly dataPath?: 'net' | 'splice'
  readonly accessLog?: 'all' | 'sample'
}

function createListeners(
  t: Test,
  { range, descriptors = 1000, dataPath = 'net', accessLog = 'all' }: CreateOptions = {},
) {
  const closed: string[] = []
  const lost: string[] = []
  const lostKeys: string[] = []
  const logged: AccessEntry[] = []
  const listeners = new Listeners(
    {
      workers: 2,
      dataPath,
      passiveHealth: false,
      accessLog,
      descriptors: DescriptorBudget.allocate(descriptors),
      range,
      meter,
    },
    {
      reported: (report) => {
        if (report.kind === 'access') logged.push(...report.entries)
      },
      closed: (key) => closed.push(key),
      lost: (reason, keys) => {
        lost.push(reason)
        lostKeys.push(...keys)
      },
    },
  )
  t.teardown(() => listeners.drain(0))
  return { listeners, closed, lost, lostKeys, logged }
}

/** How a connection ends: with an error, or in order. */
function endOf(socket: Socket): Promise<string | undefined> {
  let end: string | undefined
  socket.resume().on('error', (error: NodeJS.ErrnoException) => (end = error.code))
  return new Promise((resolve) => socket.once('close', () => resolve(end)))
}

async function ask(port: number): Promise<string> {
  const socket = connect({ host, port })
  const closed = once(socket, 'close').then(() => {
    throw new Error(`port ${port}: closed without an answer`)
  })
  const [data] = (await Promise.race([once(socket, 'data'), closed])) as [Buffer]
  socket.destroy()
  return data.toString()
}
