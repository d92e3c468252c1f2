import { once } from 'node:events'
import { createServer, type AddressInfo, type Socket } from 'node:net'
import t from 'tap'
import { cgroupSkip, serveExchange } from '../support/cgroup-client.js'
import { createNode, mountBpffs, type Started } from '../support/ebpf-node.js'
import { service, states } from '../support/states.js'
import type { SocketConnection } from '../../lib/modes/mode.js'

/** The programs report each connection. test/observe/flows tests what users see. */

const skip = cgroupSkip
const settings = { endpointRules: { allowsLoopback: true } }

function listen() {
  const told: SocketConnection[] = []
  const sum = { leftOut: 0 }
  const translated = (connections: readonly SocketConnection[], leftOut: number) => {
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
  t.ok((second.told[0]?.durationMs ?? 0) >= (opened?.durationMs ?? 1), 'since it was opened')
})
