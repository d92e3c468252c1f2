/**
 * Peers that vanish without a packet, with each data path, in a network namespace of this process.
 */
import { execFileSync } from 'node:child_process'
import { createSocket } from 'node:dgram'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { connect, createServer, type Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import t, { type Test } from 'tap'
import {
  dataPathLoaders,
  type DataPath,
} from '../../../lib/modes/userspace/datapath/create-data-path.js'
import { keepAliveStartMs } from '../../../lib/modes/userspace/datapath/data-path.js'
import { DescriptorBudget } from '../../../lib/modes/userspace/datapath/descriptors.js'
import { keepAliveAnnotation } from '../../../lib/state/connection-annotations.js'
import { enterPrivateNetns } from '../../support/private-netns.js'

const skip = enterPrivateNetns() ?? false
const host = '127.0.0.1'

t.test('keep-alive', { skip }, async (t) => {
  run('ip', 'link', 'set', 'lo', 'up')
  run('nft', 'add table inet dead; add chain inet dead in { type filter hook input priority 0; }')
  t.jobs = 8
  for (const [name, load] of Object.entries(dataPathLoaders)) {
    t.test(`data path ${name}: a client that vanished is ended and counted`, async (t) => {
      const { client, served, ends } = await open(t, load, 1_000)
      const reset = once(served, 'error')
      // A client of another server may have the same port from the kernel, and is not affected.
      vanish(client.localPort, client.remotePort)
      t.match(await reset, [{ code: 'ECONNRESET' }], 'its endpoint is told')
      t.same(await ends(), { deadClients: 1, deadEndpoints: 0 })
    })

    t.test(`data path ${name}: an endpoint that vanished is ended and counted`, async (t) => {
      const { client, endpoint, ends } = await open(t, load, 1_000)
      const reset = once(client, 'error')
      vanish(endpoint)
      t.match(await reset, [{ code: 'ECONNRESET' }], 'its client is told')
      t.same(await ends(), { deadClients: 0, deadEndpoints: 1 })
    })

    // The kernel sends no keep-alive while it waits for the confirmation of bytes.
    t.test(`data path ${name}: bytes that are never confirmed are a sign, too`, async (t) => {
      const { client, served, endpoint, ends } = await open(t, load, 1_000)
      const reset = once(client, 'error')
      vanish(endpoint)
      client.write('is anybody there?')
      t.match(await reset, [{ code: 'ECONNRESET' }])
      t.same(await ends(), { deadClients: 0, deadEndpoints: 1 })
      served.destroy()
    })

    t.test(`data path ${name}: no keep-alive is sent if a Service does not want it`, async (t) => {
      const { client, endpoint } = await open(t, load, 0)
      await sleep(keepAliveStartMs + 1_000)
      t.same(asking([client.localPort, endpoint]), [])
    })
  }
})

for (const [name, load] of Object.entries(dataPathLoaders)) {
  t.test(`data path ${name}: UDP clients beyond the ports of this node`, { skip }, async (t) => {
    run('ip', 'link', 'set', 'lo', 'up')
    run('sysctl', '-qw', 'net.ipv4.ip_local_port_range=40000 40009')
    const descriptors = new DescriptorBudget(DescriptorBudget.allocate(200))
    const create = await load()
    const nothing = () => undefined
    // Time stands still until all have asked, because an idle client gives its port to the next one.
    let now = () => 0
    const path = create({
      ...{ now: () => now(), random: Math.random, descriptors, passiveHealth: true },
      ...{ accessLog: undefined, warn: nothing },
    })
    const bound = async (port: number) => {
      const socket = createSocket('udp4').bind(port, host)
      await once(socket, 'listening')
      t.teardown(() => void socket.close())
      return socket
    }
    const endpoint = await bound(20_001)
    endpoint.on('message', (data, from) => endpoint.send(data, from.port, from.address))
    const target = { key: `${host}:20001`, ip: host, port: 20_001 }
    await path.open({
      ...{ key: 'IPv4 default/dns/UDP cluster', service: 'default/dns', protocol: 'UDP' },
      ...{ address: host, port: 20_000, endpoints: [target], servingKeys: [] },
      ...{ affinityMs: undefined, udpIdleMs: 100 },
    })
    t.teardown(() => path.drain(0))
    const left = descriptors.left
    let answers = 0
    for (let client = 0; client < 20; client++) {
      const socket = await bound(21_000 + client)
      socket.on('message', () => answers++)
      socket.send('?', 20_000, host)
    }
    while (answers < 10) await sleep(10)
    now = () => performance.now()
    // Those without a port are no clients, so none is waited for.
    while (descriptors.left < left) await sleep(10)
    const late = await bound(21_100)
    late.send('?', 20_000, host)
    await once(late, 'message')
    t.equal(answers, 10)
  })
}

t.test('the annotation is read within bounds', async (t) => {
  const { parse } = keepAliveAnnotation
  t.equal(parse('off'), 0)
  t.equal(parse('30s'), 30_000)
  for (const text of ['', 'on', '0s', '30', '999ms', '2h', '61m']) {
    t.equal(parse(text), undefined, JSON.stringify(text))
  }
})

/** A client with a connection to an endpoint, over which a byte has come. */
async function open(
  t: Test,
  load: (typeof dataPathLoaders)['net' | 'splice'],
  keepAliveMs: number,
) {
  const accepted: Socket[] = []
  const server = createServer((socket) => {
    accepted.push(socket.on('error', () => undefined).resume())
    socket.write('!')
  })
  server.listen(0, host)
  await once(server, 'listening')
  t.teardown(() => void server.close())
  const address = server.address()
  const endpoint = typeof address === 'object' && address ? address.port : 0
  const path = (await load())({
    ...{ now: () => performance.now(), random: Math.random, passiveHealth: true },
    descriptors: new DescriptorBudget(DescriptorBudget.allocate(200)),
    ...{ accessLog: undefined, warn: () => undefined },
  })
  const port = await path.open({
    ...{ key: 'web', service: 'default/web', protocol: 'TCP', address: host, port: 0 },
    endpoints: [{ key: 'endpoint', ip: host, port: endpoint }],
    ...{ servingKeys: [], affinityMs: undefined, udpIdleMs: 1000, keepAliveMs },
  })
  const client = connect(port, host).on('error', () => undefined)
  t.teardown(async () => {
    client.destroy()
    for (const socket of accepted) socket.destroy()
    await path.drain(0)
  })
  await once(client, 'data')
  const [served] = accepted
  if (!served) throw new Error('the endpoint has no connection')
  return { client, served, endpoint, ends: () => endsOf(path) }
}

async function endsOf(path: DataPath) {
  for (;;) {
    const [counts] = path.takeCounts()
    const [endpoint] = counts?.endpoints ?? []
    const { deadClients = 0, deadEndpoints = 0 } = endpoint ?? {}
    if (deadClients + deadEndpoints > 0) return { deadClients, deadEndpoints }
    await sleep(10)
  }
}

/**
 * Drops all packets from and to this port. With a peer it drops only those between the two ports.
 */
function vanish(port = 0, peer?: number): void {
  const [from, to] = peer === undefined ? ['', ''] : [`tcp dport ${peer}`, `tcp sport ${peer}`]
  run(
    'nft',
    `add rule inet dead in tcp sport ${port} ${from} drop; add rule inet dead in tcp dport ${port} ${to} drop`,
  )
}

function run(program: string, ...args: string[]): void {
  execFileSync(program, args, { stdio: ['ignore', 'ignore', 'inherit'] })
}

/** The established sockets with one of these ports that use keep-alive. */
function asking(ports: readonly (number | undefined)[]): readonly string[] {
  const portOf = (address = '') => parseInt(address.split(':')[1] ?? '', 16)
  return readFileSync('/proc/thread-self/net/tcp', 'utf8')
    .split('\n')
    .filter((line) => {
      const [, local, remote, state, , timer = ''] = line.trim().split(/\s+/)
      const isOurs = ports.includes(portOf(local)) || ports.includes(portOf(remote))
      return isOurs && state === '01' && timer.startsWith('02')
    })
}
