import { once } from 'node:events'
import { createServer, type Server, type Socket } from 'node:net'
import t, { type Test } from 'tap'
import { whyNotEnding } from '../../lib/modes/ebpf/stale-sockets.js'
import { cgroupSkip, serveTcp, serveUdp } from '../support/cgroup-client.js'
import { createNode, detachAll, mountBpffs, withMap } from '../support/ebpf-node.js'
import { startRawClient, type RawQuestion } from '../support/raw-client.js'
import { service, states, type States } from '../support/states.js'
import { untilTrue } from '../support/until.js'

const skip = cgroupSkip
const settings = { endpointRules: { allowsLoopback: true } }
const hosts = ['127.0.0.21', '127.0.0.22', '127.0.0.23'] as const
const web = { host: '10.96.0.10', port: 80 } as const
const least = { balance: 'least-connections' } as const

type How = (RawQuestion & { do: 'hold' })['how']

async function createBalancedNode(t: Test, name: string) {
  const node = await createNode(t, name)
  const raw = startRawClient(node.cgroup)
  t.teardown(() => raw.close())
  return {
    ...node,
    hold: (how: How, count: number) => raw.ask({ do: 'hold', how, ...web, count }),
    close: (count: number) => raw.ask({ do: 'close', count }),
    listen: async () => Number((await raw.ask({ do: 'listen', host: '127.0.0.1' }))[0]),
    open: () => openCounts(node.cgroup),
  }
}

/** The open connections that the programs at the cgroup count, by the address of the endpoint. */
function openCounts(folder: string): Readonly<Record<string, number>> {
  const counts: Record<string, number> = {}
  for (const [key, value] of withMap(folder, 'open', (open) => open.entries())) {
    const address = key.subarray(0, 4).join('.')
    counts[address] = (counts[address] ?? 0) + Number(value.readBigInt64LE(0))
  }
  return counts
}

/** Servers of one port at several addresses. They keep their connections open. */
async function serveAt(t: Test, addresses: readonly string[]) {
  const open = new Map<string, Set<Socket>>()
  let port = 0
  for (const host of addresses) {
    const sockets = new Set<Socket>()
    open.set(host, sockets)
    const server: Server = createServer((socket) => {
      sockets.add(socket.on('error', () => undefined).resume())
      socket.on('close', () => sockets.delete(socket))
    })
    server.listen(port, host)
    await once(server, 'listening')
    const address = server.address()
    if (address !== null && typeof address === 'object') port = address.port
    t.teardown(() => {
      for (const socket of sockets) socket.destroy()
      server.close()
    })
  }
  const counts = () => Object.fromEntries([...open].map(([host, { size }]) => [host, size]))
  return { port, counts }
}

const sumOf = (counts: Readonly<Record<string, number>>) =>
  Object.values(counts).reduce((sum, count) => sum + count, 0)

/** Waits until the servers have so many connections together, and returns the counts of each. */
async function servedWhen(counts: () => Readonly<Record<string, number>>, total: number) {
  await untilTrue(() => sumOf(counts()) === total)
  return counts()
}

const spread = (counts: Readonly<Record<string, number>>) =>
  Math.max(...Object.values(counts)) - Math.min(...Object.values(counts))

t.test('least connections: uneven counts get even, also after a restart', { skip }, async (t) => {
  const { start, hold, close, open } = await createBalancedNode(t, 'least')
  const { port, counts } = await serveAt(t, hosts)
  const config = { 'ebpf.bpffs': mountBpffs(t) } as const
  const cluster = states('IPv4', settings)
  const serve = (at: readonly string[]) =>
    cluster.put(service({ options: least, endpoints: at.map((ip) => ({ ip, port })) }))
  const before = await start(config)
  await before.apply(serve([hosts[0]]))
  await hold('tcp', 30)
  t.same(open(), { [hosts[0]]: 30 })
  await before.apply(serve(hosts))
  await hold('tcp', 20)
  t.same(open(), await servedWhen(counts, 50), 'counted is what there is')
  t.equal(counts()[hosts[0]], 30, 'the one with many gets no more')
  await before.mode.close()
  const after = await start(config)
  t.teardown(() => after.mode.close())
  await after.apply(serve([...hosts].reverse()))
  t.same(open(), counts(), 'the counts are of endpoints, wherever these stand in a table')
  // In a simulation one run of 550 was more uneven than 6. Chance does not do that three times.
  let total = 50
  let evened = counts()
  for (let tries = 0; tries < 3 && spread(evened) > 6; tries++) {
    await hold('tcp', 40)
    evened = await servedWhen(counts, (total += 40))
  }
  t.ok(spread(evened) <= 6, `${JSON.stringify(evened)} by chance the first would have 20 more`)
  t.same(open(), evened)
  await close(total)
  await servedWhen(counts, 0)
  t.same(open(), { [hosts[0]]: 0, [hosts[1]]: 0, [hosts[2]]: 0 })
})

t.test('least connections: whatever becomes of a connection is counted', { skip }, async (t) => {
  const { start, hold, close, listen, open } = await createBalancedNode(t, 'fates')
  const { mode, apply } = await start()
  t.teardown(() => mode.close())
  const cluster = states('IPv4', settings)
  const serve = (port: number) =>
    apply(cluster.put(service({ options: least, endpoints: [{ ip: '127.0.0.1', port }] })))
  const gone = await serveTcp('gone', '127.0.0.1')
  await gone.close()
  await serve(gone.port)
  t.same(await hold('tcp', 2), ['ECONNREFUSED', 'ECONNREFUSED'])
  t.same(open(), { '127.0.0.1': 0 }, 'what failed is over before its socket is closed')
  await close(2)
  t.same(open(), { '127.0.0.1': 0 }, 'and is not taken away twice')
  await serve(await listen())
  t.same(await hold('tcp', 1), ['done'])
  t.same(await hold('begin', 4), Array(4).fill('begun'))
  t.equal(sumOf(open()), 5)
  await close(5)
  t.equal(sumOf(open()), 0, 'closed before connect() had ended')
})

t.test('least connections: every way to connect is counted', { skip }, async (t) => {
  const { start, hold, close, open } = await createBalancedNode(t, 'ways')
  const { mode, apply } = await start()
  t.teardown(() => mode.close())
  const { port, counts } = await serveAt(t, ['127.0.0.1'])
  const options = least
  const cluster = states('IPv4', settings)
  await apply(cluster.put(service({ options, endpoints: [{ ip: '127.0.0.1', port }] })))
  let held = 0
  for (const how of ['mptcp', 'fastopen', 'io_uring'] as const) {
    const [name] = await hold(how, 1)
    if (name === 'done') held++
    else t.comment(`this kernel has no ${how}: ${name}`)
  }
  await servedWhen(counts, held)
  t.equal(sumOf(open()), held)
  // The client keeps sockets that failed too, so it closes all three.
  await close(3)
  await servedWhen(counts, 0)
  await untilTrue(() => sumOf(open()) === 0)
  t.equal(sumOf(open()), 0)
})

t.test('least connections: sockets of UDP count until they are closed', { skip }, async (t) => {
  const { client, start, hold, close, open } = await createBalancedNode(t, 'udp')
  const { mode, apply } = await start()
  t.teardown(() => mode.close())
  const first = await serveUdp('one', hosts[0])
  const second = await serveUdp('two', hosts[1], first.port)
  for (const server of [first, second]) t.teardown(() => server.close())
  const udp = { options: least, protocol: 'UDP', ...web } as const
  const cluster = states('IPv4', settings)
  const serve = (at: readonly string[]) =>
    apply(cluster.put(service({ ...udp, endpoints: at.map((ip) => ({ ip, port: first.port })) })))
  const ask = async (socket: string) =>
    (await client.ask({ do: 'send', socket, type: 'udp4', ...web })).name
  await serve([hosts[0]])
  for (const socket of ['a', 'b', 'a']) t.equal(await ask(socket), 'one')
  t.same(open(), { [hosts[0]]: 2 })
  await serve([hosts[1]])
  t.equal(await ask('a'), 'two')
  t.same(open(), { [hosts[0]]: 1, [hosts[1]]: 1 }, 'a socket that moved counts where it is')
  await serve(hosts.slice(0, 2))
  for (const socket of ['c', 'd', 'e', 'f']) await ask(socket)
  t.same(open(), { [hosts[0]]: 3, [hosts[1]]: 3 })
  if (whyNotEnding() === undefined) {
    await hold('udp', 4)
    t.same(open(), { [hosts[0]]: 5, [hosts[1]]: 5 })
    await close(4)
  }
  await client.close()
  await untilTrue(() => sumOf(open()) === 0)
  t.same(open(), { [hosts[0]]: 0, [hosts[1]]: 0 })
})

t.test('least connections: affinity comes first, and is counted', { skip }, async (t) => {
  const { start, hold, open } = await createBalancedNode(t, 'clients')
  const { mode, apply } = await start()
  t.teardown(() => mode.close())
  const { port, counts } = await serveAt(t, hosts)
  const cluster = states('IPv4', settings)
  const endpoints = hosts.map((ip) => ({ ip, port }))
  await apply(cluster.put(service({ options: least, affinitySeconds: 600, endpoints })))
  await hold('tcp', 6)
  const [kept] = Object.entries(await servedWhen(counts, 6)).filter(([, count]) => count > 0)
  t.same(kept?.[1], 6)
  t.same(open(), { [kept?.[0] ?? '']: 6 })
  await apply(cluster.put(service({ options: least, endpoints })))
  await hold('tcp', 6)
  t.equal((await servedWhen(counts, 12))[kept?.[0] ?? ''], 6, 'others get what comes then')
})

t.test('least connections: what ended unseen does not stay open', { skip }, async (t) => {
  const { cgroup, start, hold, close, open } = await createBalancedNode(t, 'unseen')
  const { mode, apply } = await start()
  t.teardown(() => mode.close())
  const { port, counts } = await serveAt(t, ['127.0.0.1'])
  const cluster: States = states('IPv4', settings)
  cluster.put(service({ options: least, endpoints: [{ ip: '127.0.0.1', port }] }))
  await apply(cluster)
  await hold('tcp', 3)
  detachAll(cgroup)
  await close(1)
  mode.forget()
  await apply(cluster)
  await hold('tcp', 2)
  await servedWhen(counts, 4)
  t.same(open(), { '127.0.0.1': 2 }, 'counted anew')
  await close(2)
  await servedWhen(counts, 2)
  t.same(open(), { '127.0.0.1': 2 }, 'older ones are not taken away from these')
  await close(2)
  t.same(open(), { '127.0.0.1': 0 })
})

t.test('round robin: connections take turns', { skip }, async (t) => {
  const { start, hold, open } = await createBalancedNode(t, 'turns')
  const { mode, apply } = await start()
  t.teardown(() => mode.close())
  const { port, counts } = await serveAt(t, hosts)
  const options = { balance: 'round-robin' }
  const endpoints = hosts.map((ip) => ({ ip, port }))
  await apply(states('IPv4', settings).put(service({ options, endpoints })))
  await hold('tcp', 12)
  t.same(Object.values(await servedWhen(counts, 12)), [4, 4, 4])
  t.same(open(), {}, 'what nobody chooses by is not counted')
})
