import { once } from 'node:events'
import { createServer, type AddressInfo, type Socket } from 'node:net'
import t from 'tap'
import { cgroupSkip, serveExchange, serveUdp } from '../support/cgroup-client.js'
import { createNode, mountBpffs, type Started } from '../support/ebpf-node.js'
import { service, states } from '../support/states.js'
import { hostPort } from '../../lib/state/ip.js'
import type { SocketFlow } from '../../lib/modes/mode.js'

/** The programs report each connection. test/observe/flows tests what users see. */

const skip = cgroupSkip
const settings = { endpointRules: { allowsLoopback: true } }

function listen() {
  const told: SocketFlow[] = []
  const sum = { leftOut: 0 }
  const translated = (connections: readonly SocketFlow[], leftOut: number) => {
    told.push(...connections)
    sum.leftOut += leftOut
  }
  return { told, sum, listeners: { translated } }
}

/** Makes the mode read its records: it does so once more when it ends. */
async function look({ mode }: Started): Promise<void> {
  const ending = new AbortController()
  const running = mode.run(ending.signal)
  ending.abort()
  await running
}

t.test('the memory of what is told is bounded, and the rest is counted', { skip }, async (t) => {
  const { client, start } = await createNode(t, 'bounded')
  const { told, sum, listeners } = listen()
  const started = await start({}, listeners)
  t.teardown(() => started.mode.close())
  const size = { request: 1, answer: 1 }
  const server = await serveExchange('127.0.0.1', { ...size, ends: true })
  t.teardown(() => server.close())
  const endpoints = [{ ip: '127.0.0.1', port: server.port }]
  await started.apply(states('IPv4', settings).put(service({ endpoints })))
  const exchange = { do: 'exchange', host: '10.96.0.10', port: 80, end: 'reset', ...size } as const
  // Each connection has two records, and the ring has room for fewer than 2,600.
  const connections = 1500
  t.same(await client.ask({ ...exchange, connections }), { name: String(connections) })
  await look(started)
  t.equal(told.length, 256)
  t.equal(told.length + sum.leftOut, 2 * connections)
  t.same(await client.ask({ ...exchange, connections: 1 }), { name: '1' })
  await look(started)
  const after = told.slice(256).map(({ event }) => event)
  t.same([after, sum.leftOut], [['opened', 'ended'], 2 * connections - 256], 'there is room again')
})

t.test('a connection that lives through a restart has the line of its end', { skip }, async (t) => {
  const { client, start } = await createNode(t, 'through')
  const config = { 'ebpf.bpffs': mountBpffs(t) } as const
  const held: Socket[] = []
  const server = createServer((socket) => void held.push(socket.on('error', () => undefined)))
  await once(server.listen(0, '127.0.0.1'), 'listening')
  t.teardown(() => server.close())
  const { port } = server.address() as AddressInfo
  const cluster = states('IPv4', settings).put(service({ endpoints: [{ ip: '127.0.0.1', port }] }))
  const first = listen()
  const before = await start(config, first.listeners)
  await before.apply(cluster)
  const asking = client.ask({ do: 'connect', host: '10.96.0.10', port: 80 })
  await once(server, 'connection')
  await look(before)
  t.same(
    first.told.map(({ event }) => event),
    ['opened'],
  )
  await before.mode.close()
  const second = listen()
  const after = await start(config, second.listeners)
  t.teardown(() => after.mode.close())
  await after.apply(cluster)
  for (const socket of held) socket.end('one')
  t.match(await asking, { name: 'one' })
  // The last acknowledgement of a connection may come after its client has ended.
  while (second.told.length === 0) {
    await new Promise((resolve) => setTimeout(resolve, 5))
    await look(after)
  }
  const [opened] = first.told
  t.match(second.told, [
    {
      ...{ event: 'ended', service: 'default/web:http', client: opened?.client ?? '' },
      ...{ address: '10.96.0.10:80', endpoint: `127.0.0.1:${port}` },
      ...{ bytesToEndpoint: 0, bytesToClient: 3 },
    },
  ])
  const [ended] = second.told
  const lasted = (flow: SocketFlow | undefined) =>
    flow && flow.event !== 'client' ? flow.durationMs : Number.NaN
  t.ok(lasted(ended) >= lasted(opened), 'since it was opened')
})

t.test('a UDP socket has a line for each Service that it sends to', { skip }, async (t) => {
  const { client, start } = await createNode(t, 'clients')
  const { told, sum, listeners } = listen()
  const started = await start({}, listeners)
  t.teardown(() => started.mode.close())
  const [one, two, three] = ['10.96.0.21', '10.96.0.22', 'fd00:10:96::23']
  const clusters = { IPv4: states('IPv4', settings), IPv6: states('IPv6', settings) }
  const endpointOf = new Map<string, string>()
  for (const clusterIp of [one, two, three]) {
    const [family, ip] = clusterIp.includes(':')
      ? (['IPv6', '::1'] as const)
      : (['IPv4', '127.0.0.1'] as const)
    const server = await serveUdp(clusterIp, ip)
    t.teardown(() => server.close())
    const spec = {
      name: `at-${clusterIp.slice(-2)}`,
      clusterIp,
      protocol: 'UDP',
      port: 53,
    } as const
    await started.apply(
      clusters[family].put(service({ ...spec, endpoints: [{ ip, port: server.port }] })),
    )
    endpointOf.set(clusterIp, hostPort(ip, server.port))
  }
  const send = async (socket: string, type: 'udp4' | 'udp6', to: string, from?: string) => {
    const host = type === 'udp6' && !to.includes(':') ? `::ffff:${to}` : to
    const bound = from === undefined ? {} : { from }
    const answer = await client.ask({ do: 'send', socket, type, host, port: 53, ...bound })
    t.equal(answer.name, to, `${socket} to ${host}`)
  }
  await send('a', 'udp4', one)
  await send('a', 'udp4', two)
  await send('a', 'udp4', one)
  await send('mapped', 'udp6', two)
  await send('ip6', 'udp6', three)
  await send('bound', 'udp4', one, '127.0.0.1')
  await send('bound mapped', 'udp6', two, '::ffff:127.0.0.1')
  await send('bound ip6', 'udp6', three, '::1')
  const to = { host: one, port: 53 }
  t.match(await client.ask({ do: 'talk', socket: 'peer', type: 'udp4', to }), { name: one })
  await look(started)
  const wanted = [
    ...[one, two, two, three].map((address) => [address, '']),
    ...[
      [one, '127.0.0.1:'],
      [two, '127.0.0.1:'],
      [three, '[::1]:'],
      [one, ''],
    ],
  ]
  t.same(
    told.map((flow) => ({ ...flow, client: flow.client.replace(/\d+$/, '') })),
    wanted.map(([address = '', client]) => ({
      ...{ event: 'client', process: process.pid, client },
      service: `default/at-${address.slice(-2)}:http`,
      ...{ address: hostPort(address, 53), endpoint: endpointOf.get(address) },
    })),
    'each once',
  )
  t.ok(
    told.every(({ client }) => client === '' || /:[1-9]\d*$/.test(client)),
    'with ports',
  )
  t.equal(sum.leftOut, 0)
})
