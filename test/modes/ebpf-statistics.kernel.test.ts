import { execFileSync } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { createServer, type AddressInfo, type Socket } from 'node:net'
import t from 'tap'
import { whyNotEnding } from '../../lib/modes/ebpf/stale-sockets.js'
import { daemonNumbers } from '../../lib/inspect/top/daemon-numbers.js'
import { cgroupSkip, serveExchange, serveUdp, type Exchange } from '../support/cgroup-client.js'
import { createNode, detachAll, mountBpffs, type Started } from '../support/ebpf-node.js'
import { enterPrivateNetns } from '../support/private-netns.js'
import { service, states } from '../support/states.js'
import { untilTrue } from '../support/until.js'

const skip = cgroupSkip || (enterPrivateNetns() ?? false)
if (skip === false) execFileSync('ip', ['link', 'set', 'lo', 'up'])
const noEnding = whyNotEnding() ?? false
const settings = { endpointRules: { allowsLoopback: true } }

const numbersOf = async ({ page }: Pick<Started, 'page'>, key: string) =>
  daemonNumbers(await page()).get(key)

const valueOf = async ({ page }: Pick<Started, 'page'>, name: string) => {
  const lines = (await page()).split('\n').filter((line) => line.startsWith(`kubeproxy_${name}{`))
  return lines.reduce((sum, line) => sum + Number(line.split(' ').at(-1)), 0)
}

const openOf = (started: Started) => valueOf(started, 'service_active_connections')

t.test('connections and bytes are counted exactly, however they end', { skip }, async (t) => {
  const { client, start } = await createNode(t, 'counts')
  const started = await start()
  t.teardown(() => started.mode.close())
  const [request, answer, connections] = [3000, 70_000, 60]
  let number = 0
  for (const [host, net] of [
    ['127.0.0.1', '10.96.0.'],
    ['::1', 'fd00:96::'],
  ] as const) {
    const family = host === '::1' ? 'IPv6' : 'IPv4'
    const cluster = states(family, settings)
    for (const end of ['after', 'close', 'half', 'reset'] as const) {
      const clusterIp = `${net}${++number}`
      const server = await serveExchange(host, { request, answer, ends: end === 'after' })
      t.teardown(() => server.close())
      const name = `${end}-${family.toLowerCase()}`
      await started.apply(
        cluster.put(service({ name, clusterIp, endpoints: [{ ip: host, port: server.port }] })),
      )
      const exchange: Exchange = {
        ...{ do: 'exchange', host: clusterIp, port: 80, connections, request, answer, end },
      }
      t.same(await client.ask(exchange), { name: String(connections) })
      // The last acknowledgement of a connection may come after its client has ended.
      await untilTrue(async () => (await openOf(started)) === 0)
      const bytes = { bytesIn: connections * request, bytesOut: connections * answer }
      const expected = { open: 0, total: connections, errors: 0, ...bytes }
      t.same(await numbersOf(started, `default/${name}:http/TCP`), expected, name)
    }
  }
  t.equal(await valueOf(started, 'service_retransmits_total'), 0)
  const [seconds, count] = [
    await valueOf(started, 'service_round_trip_seconds_total'),
    await valueOf(started, 'service_round_trips_total'),
  ]
  t.ok(count >= 8 * connections, 'every connection measures at least one round trip')
  t.ok(seconds > 0 && seconds / count < 60)
})

/** How many segments the kernel has sent once more in this network namespace, for all sockets. */
function sentOnceMore(): number {
  const lines = readFileSync('/proc/thread-self/net/snmp', 'utf8').split('\n')
  const [names = [], values = []] = lines
    .filter((line) => line.startsWith('Tcp:'))
    .map((line) => line.split(' '))
  return Number(values[names.indexOf('RetransSegs')])
}

t.test('segments that were lost are counted when they are sent once more', { skip }, async (t) => {
  const { client, start } = await createNode(t, 'losses')
  const started = await start()
  t.teardown(() => started.mode.close())
  const [request, answer] = [3000, 10]
  const server = await serveExchange('127.0.0.1', { request, answer, ends: true })
  t.teardown(() => server.close())
  const endpoints = [{ ip: '127.0.0.1', port: server.port }]
  await started.apply(states('IPv4', settings).put(service({ clusterIp: '10.96.0.10', endpoints })))
  const nft = (...args: readonly string[]) => execFileSync('nft', args, { encoding: 'utf8' })
  // The request is one segment, and the quota ends with the third one.
  const lost = `tcp dport ${server.port} meta length > ${request} quota until ${2.5 * request} bytes`
  const hook = 'type filter hook input priority 0;'
  nft(`table ip lossy { chain input { ${hook} ${lost} counter drop; }; }`)
  t.teardown(() => nft('delete table ip lossy'))
  const before = sentOnceMore()
  const exchange = { do: 'exchange', end: 'after', connections: 1, request, answer } as const
  t.same(await client.ask({ ...exchange, host: '10.96.0.10', port: 80 }), { name: '1' })
  const dropped = Number(/counter packets (\d+)/.exec(nft('list table ip lossy'))?.[1])
  t.equal(dropped, 2)
  const counted = await valueOf(started, 'service_retransmits_total')
  const byKernel = sentOnceMore() - before
  // On a busy machine more is sent once more than was lost, and the server's own is the kernel's.
  t.ok(counted >= dropped && counted <= byKernel, `${dropped} <= ${counted} <= ${byKernel}`)
})

t.test('a connection that reaches nobody is counted as an error', { skip }, async (t) => {
  const { client, start } = await createNode(t, 'errors')
  const started = await start()
  t.teardown(() => started.mode.close())
  const gone = await serveExchange('127.0.0.1', { request: 1, answer: 1, ends: true })
  await gone.close()
  const closed = service({ name: 'closed', endpoints: [{ ip: '127.0.0.1', port: gone.port }] })
  const empty = service({ name: 'empty', clusterIp: '10.96.0.11', endpoints: 0 })
  const cluster = states('IPv4', settings).put(closed, empty)
  await started.apply(cluster)
  for (const host of ['10.96.0.10', '10.96.0.10', '10.96.0.11', '::ffff:10.96.0.11']) {
    t.same(await client.ask({ do: 'connect', host, port: 80 }), { error: 'ECONNREFUSED' })
  }
  t.match(await numbersOf(started, 'default/closed:http/TCP'), {
    open: 0,
    total: 0,
    errors: 2,
  })
  t.match(await numbersOf(started, 'default/empty:http/TCP'), {
    open: 0,
    total: 0,
    errors: 2,
  })
  t.equal(await valueOf(started, 'service_dial_errors_total'), 2)
  t.equal(await valueOf(started, 'service_refused_connections_total'), 2)
  await started.apply(cluster.remove(closed, empty))
  await started.page()
  t.notMatch(await started.page(), /default\//, 'the numbers of a Service go with it')
})

t.test('each socket of UDP is a client', { skip }, async (t) => {
  const { client, start } = await createNode(t, 'clients')
  const started = await start()
  t.teardown(() => started.mode.close())
  const server = await serveUdp('one', '127.0.0.1')
  t.teardown(() => server.close())
  const endpoints = [{ ip: '127.0.0.1', port: server.port }]
  await started.apply(
    states('IPv4', settings).put(service({ protocol: 'UDP', port: 53, endpoints })),
  )
  const to = { host: '10.96.0.10', port: 53 }
  for (const socket of ['one', 'one', 'two']) {
    t.equal((await client.ask({ do: 'send', socket, type: 'udp4', ...to })).name, 'one')
  }
  const numbers = () => numbersOf(started, 'default/web:http/UDP')
  t.match(await numbers(), { open: 0, total: 2, errors: 0 })
  await client.ask({ do: 'talk', socket: 'three', type: 'udp4', to })
  const isCounted = noEnding === false
  t.match(await numbers(), isCounted ? { open: 1, total: 3 } : { total: 2 })
})

t.test('open connections are known after restarts and after a detach', { skip }, async (t) => {
  const { client, cgroup, start } = await createNode(t, 'open')
  const config = { 'ebpf.bpffs': mountBpffs(t) } as const
  const held = await holdConnections()
  t.teardown(() => held.close())
  const { port } = held
  const cluster = states('IPv4', settings).put(service({ endpoints: [{ ip: '127.0.0.1', port }] }))
  const connect = async () => {
    const asking = client.ask({ do: 'connect', host: '10.96.0.10', port: 80 })
    await held.next()
    return asking
  }
  const before = await start(config)
  await before.apply(cluster)
  const first = connect()
  await untilTrue(async () => (await openOf(before)) === 1)
  await before.mode.close()
  const after = await start(config)
  t.teardown(() => after.mode.close())
  await after.apply(cluster)
  const numbers = () => numbersOf(after, 'default/web:http/TCP')
  t.match(await numbers(), { open: 1, total: 1 }, 'known to the next process')
  held.release()
  await first
  await untilTrue(async () => (await openOf(after)) === 0)
  const second = connect()
  await untilTrue(async () => (await openOf(after)) === 1)
  detachAll(cgroup)
  held.release()
  await second
  after.mode.forget()
  await after.apply(cluster)
  t.match(await numbers(), { open: 0, total: 2 }, 'nothing seems open for good')
  const third = connect()
  await untilTrue(async () => (await openOf(after)) === 1)
  held.release()
  await third
  await untilTrue(async () => (await openOf(after)) === 0)
  t.match(await numbers(), { total: 3 }, 'and counting goes on')
})

/** A server that keeps connections open until the test releases them. */
async function holdConnections() {
  const sockets = new Set<Socket>()
  const server = createServer((socket) => sockets.add(socket.on('error', () => undefined)))
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  return {
    port: (server.address() as AddressInfo).port,
    next: () => once(server, 'connection'),
    release: () => {
      for (const socket of sockets) socket.end()
      sockets.clear()
    },
    close: async () => {
      server.close()
      await once(server, 'close')
    },
  }
}
