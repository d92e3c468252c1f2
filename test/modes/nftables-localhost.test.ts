import { once } from 'node:events'
import { connect, createServer, type AddressInfo, type Server, type Socket } from 'node:net'
import t from 'tap'
import { Admission } from '../../lib/modes/nftables/admission.js'
import { LocalhostPorts } from '../../lib/modes/nftables/localhost-ports.js'
import { nftablesPlanner } from '../../lib/modes/nftables/plan.js'
import { freePort } from '../support/free-port.js'
import { openSilentPort } from '../support/silent-server.js'
import { service, states, testSettings } from '../support/states.js'

const silent = () => undefined
const log = { debug: silent, info: silent, warn: silent, error: silent }
const meter = { count: silent, gauge: silent }

const admission = (limit = 1000) => new Admission({ log, now: () => 0, limit })

/** A server that answers with its name and the received text when the client closes its side. */
async function namedServer(
  name: string,
  { host = '127.0.0.1', port = 0 } = {},
): Promise<{ server: Server; port: number }> {
  const server = createServer({ allowHalfOpen: true }, (socket) => {
    let got = ''
    socket.on('data', (data) => (got += data.toString()))
    socket.on('end', () => socket.end(`${name} ${got}`))
    socket.on('error', silent)
  })
  await new Promise<void>((resolve) => server.listen(port, host, resolve))
  return { server, port: (server.address() as AddressInfo).port }
}

/** Sends a text, closes this side, and returns the answer or the error code. */
function ask(host: string, port: number, text: string): Promise<string> {
  return new Promise((resolve) => {
    const socket = connect({ host, port, allowHalfOpen: true })
    let answer = ''
    socket.on('data', (data) => (answer += data.toString()))
    socket.on('end', () => resolve(answer))
    socket.on('error', (error: NodeJS.ErrnoException) => resolve(error.code ?? 'error'))
    socket.end(text)
  })
}

void t.test('S23, NF25: TCP node ports answer on localhost where loopback is chosen', async (t) => {
  const { server, port } = await namedServer('a')
  const nodePort = await freePort()
  const metrics = new Map<string, number>()
  const meter = {
    count: (name: string) => metrics.set(name, (metrics.get(name) ?? 0) + 1),
    gauge: (name: string, _: unknown, value: number) => metrics.set(name, value),
  }
  const deps = { log, meter, random: () => 0, now: () => 0, admission: admission() }
  const ports = new LocalhostPorts(deps)
  t.teardown(() => {
    server.close()
    ports.close()
  })
  const cluster = states('IPv4', { nodePortAddresses: ['127.0.0.0/8'] })
  const plan = nftablesPlanner(testSettings)
  const listeners = () => metrics.get('nftables_localhost_nodeport_listeners')
  const web = service({
    nodePort,
    externalPolicyLocal: true,
    endpoints: [{ ip: '127.0.0.1', port, local: false }],
  })
  const update = () => ports.update(plan(cluster.take()))

  cluster.put(web)
  t.same(await update(), [])
  t.equal(await ask('127.0.0.1', nodePort, 'hello'), 'a hello', 'half-close is kept, S18 holds')
  t.equal(listeners(), 1)

  cluster.put({ ...web, endpoints: [{ ip: '127.0.0.1', port: 1 }] })
  await update()
  t.equal(await ask('127.0.0.1', nodePort, 'hello'), 'ECONNRESET', 'nobody there')

  cluster.put({
    ...web,
    endpoints: [
      { ip: '127.0.0.2', port },
      { ip: '127.0.0.1', port },
    ],
  })
  await update()
  t.equal(await ask('127.0.0.1', nodePort, 'x'), 'a x', 'another endpoint is tried')

  cluster.put({ ...web, endpoints: [] })
  await update()
  t.equal(await ask('127.0.0.1', nodePort, 'hello'), 'ECONNREFUSED', 'S19')

  const taken = { ...web, nodePort: port }
  cluster.put(taken)
  t.match(await update(), [
    { key: 'default/web:http/TCP', event: 'PortConflict', reason: /EADDRINUSE/ },
  ])
  t.equal(listeners(), 0)
  t.equal(metrics.get('nftables_localhost_nodeport_listener_creation_failures_total'), 1)
  await new Promise((resolve) => server.close(resolve))
  t.same(await update(), [], 'tried again at the next sync')
  t.equal(listeners(), 1)
  cluster.remove(web)
  await update()
  t.equal(await ask('127.0.0.1', port, ''), 'ECONNREFUSED')
})

void t.test('a port that cannot be opened is a failure of its own family alone', async (t) => {
  const { server, port: nodePort } = await namedServer('taken')
  const deps = { log, meter, random: () => 0, now: () => 0, admission: admission() }
  const ports = new LocalhostPorts(deps)
  t.teardown(() => {
    server.close()
    ports.close()
  })
  const plan = nftablesPlanner(testSettings)
  const cluster = states('IPv4', { nodePortAddresses: ['127.0.0.0/8'] })
  t.equal((await ports.update(plan(cluster.put(service({ nodePort })).take()))).length, 1)
  t.same(await ports.update(plan(states('IPv6').take())), [])
})

void t.test('session affinity keeps clients of localhost with one endpoint', async (t) => {
  const { server, port } = await namedServer('a')
  const other = await namedServer('b', { host: '127.0.0.2', port })
  const nodePort = await freePort()
  let [drawn, time] = [0, 0]
  const random = () => drawn
  const ports = new LocalhostPorts({ log, meter, random, now: () => time, admission: admission() })
  t.teardown(() => {
    server.close()
    other.server.close()
    ports.close()
  })
  const cluster = states('IPv4', { nodePortAddresses: ['127.0.0.0/8'] })
  const plan = nftablesPlanner(testSettings)
  const update = () => ports.update(plan(cluster.take()))
  const endpoints = ['127.0.0.1', '127.0.0.2'].map((ip) => ({ ip, port }))
  const first = async () => (await ask('127.0.0.1', nodePort, '')).trim()

  cluster.put(service({ nodePort, affinitySeconds: 10, endpoints }))
  await update()
  t.equal(await first(), 'a')
  drawn = 0.99
  time = 9_000
  t.equal(await first(), 'a', 'chance would draw the other')
  time = 18_000
  t.equal(await first(), 'a', 'each connection starts the time anew')
  time = 28_000
  t.equal(await first(), 'b', 'the time is over')

  drawn = 0
  cluster.put(service({ nodePort, affinitySeconds: 10, endpoints: endpoints.slice(0, 1) }))
  await update()
  t.equal(await first(), 'a', 'its endpoint is gone')
  cluster.put(service({ nodePort, affinitySeconds: 10, endpoints }))
  await update()
  drawn = 0.99
  t.equal(await first(), 'a', 'the next one is stayed with')
})

void t.test('an endpoint that does not answer is left for the next one', async (t) => {
  const port = await openSilentPort(t)
  const { server } = await namedServer('a', { host: '127.0.0.2', port })
  const nodePort = await freePort()
  const random = () => 0
  const ports = new LocalhostPorts({ log, meter, random, now: () => 0, admission: admission() })
  t.teardown(() => {
    server.close()
    ports.close()
  })
  const endpoints = ['127.0.0.1', '127.0.0.2'].map((ip) => ({ ip, port }))
  const cluster = states('IPv4', { nodePortAddresses: ['localhost'] })
  cluster.put(service({ nodePort, endpoints }))
  await ports.update(nftablesPlanner(testSettings)(cluster.take()))
  t.equal(await ask('127.0.0.1', nodePort, 'x'), 'a x')
})

for (const nodePortAddresses of [['primary'], ['all'], ['0.0.0.0/0'], []])
  void t.test(
    `L06: nothing listens where node ports are asked for at [${nodePortAddresses.join()}]`,
    async (t) => {
      const ports = new LocalhostPorts({
        log,
        meter,
        random: () => 0,
        now: () => 0,
        admission: admission(),
      })
      const nodePort = await freePort()
      const cluster = states('IPv4', { nodePortAddresses })
      cluster.put(service({ nodePort }))
      await ports.update(nftablesPlanner(testSettings)(cluster.take()))
      t.equal(await ask('127.0.0.1', nodePort, ''), 'ECONNREFUSED')
      ports.close()
    },
  )

void t.test(
  'NF25: connections beyond the limit are refused at once, and later ones are served',
  async (t) => {
    const { server, port } = await namedServer('a')
    const nodePort = await freePort()
    const ports = new LocalhostPorts({
      log,
      meter,
      random: () => 0,
      now: () => 0,
      admission: admission(2),
    })
    t.teardown(() => {
      server.close()
      ports.close()
    })
    const cluster = states('IPv4', { nodePortAddresses: ['127.0.0.0/8'] })
    cluster.put(service({ nodePort, endpoints: [{ ip: '127.0.0.1', port }] }))
    await ports.update(nftablesPlanner(testSettings)(cluster.take()))
    const held = await Promise.all([0, 1].map(() => opened(nodePort)))
    t.equal(await ask('127.0.0.1', nodePort, 'x'), 'ECONNRESET')
    held[0]?.destroy()
    let answer = ''
    for (let left = 100; left > 0 && answer !== 'a x'; left--) {
      answer = await ask('127.0.0.1', nodePort, 'x')
    }
    t.equal(answer, 'a x')
    held[1]?.destroy()
  },
)

void t.test('a node port that goes while an endpoint is dialled keeps no connection', async (t) => {
  const { server, port } = await namedServer('a')
  const nodePort = await freePort()
  // A client is admitted before its endpoint is dialled.
  const now = () => {
    process.nextTick(() => ports.close())
    return 0
  }
  const door = new Admission({ log, now, limit: 2 })
  const ports = new LocalhostPorts({ log, meter, random: () => 0, now: () => 0, admission: door })
  const cluster = states('IPv4', { nodePortAddresses: ['127.0.0.0/8'] })
  cluster.put(service({ nodePort, endpoints: [{ ip: '127.0.0.1', port }] }))
  await ports.update(nftablesPlanner(testSettings)(cluster.take()))
  const dialled = once(server, 'connection')
  const client = await opened(nodePort)
  client.resume()
  const [connection] = (await dialled) as [Socket]
  await once(connection, 'end')
  // The server ends with its last connection.
  await new Promise((resolve) => server.close(resolve))
  t.pass('the connection has ended')
})

void t.test(
  'without free descriptors connections are refused for a second, and the log says so once',
  async (t) => {
    const clock = { ms: 0 }
    const lines: object[] = []
    const door = new Admission({
      log: { ...log, warn: (fields) => void lines.push(fields) },
      now: () => clock.ms,
      limit: 2,
    })
    const failure = (code: string) => Object.assign(new Error(code), { code })
    t.notOk(door.noteExhaustion(failure('ECONNREFUSED')))
    t.ok(door.tryEnter())
    t.ok(door.noteExhaustion(failure('EMFILE')))
    t.notOk(door.tryEnter())
    t.notOk(door.tryEnter())
    clock.ms = 1000
    t.ok(door.tryEnter())
    t.notOk(door.tryEnter(), 'two are inside')
    door.leave()
    t.ok(door.tryEnter())
    t.same(lines, [{ refused: 1, open: 1 }])
  },
)

function opened(port: number): Promise<Socket> {
  return new Promise((resolve) => {
    const socket = connect({ host: '127.0.0.1', port }, () => resolve(socket))
    socket.on('error', silent)
  })
}
