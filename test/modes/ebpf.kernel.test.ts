import { mkdirSync, readdirSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { attachedPrograms } from '../../lib/kernel/bpf/attached.js'
import { Attributes } from '../../lib/kernel/bpf/attributes.js'
import { createLink } from '../../lib/kernel/bpf/link.js'
import { Assembler } from '../../lib/kernel/bpf/assembler.js'
import { loadProgram } from '../../lib/kernel/bpf/program.js'
import { detachLink, forEachCgroupLink } from '../../lib/kernel/bpf/link.js'
import { openSystemCalls } from '../../lib/kernel/bpf/system-calls.js'
import { mountsOf, openCgroup } from '../../lib/kernel/cgroup.js'
import { configWith } from '../../lib/config/load.js'
import { addNodeCgroup, removeCgroup } from '../../lib/lab/world/cgroups.js'
import { cleanupSockets } from '../../lib/modes/ebpf/cleanup.js'
import { ebpfMode } from '../../lib/modes/ebpf/index.js'
import {
  memberKey,
  memberValues,
  service as serviceEntry,
  targetId,
} from '../../lib/modes/ebpf/layout.js'
import { probeSockets } from '../../lib/modes/ebpf/probe.js'
import { whyNotEnding } from '../../lib/modes/ebpf/stale-sockets.js'
import { cgroupSkip, serveTcp, serveUdp, type Answer } from '../support/cgroup-client.js'
import { fewCapabilities } from '../support/few-capabilities.js'
import {
  createGuardedNode,
  createNode,
  detachAll,
  mountBpffs,
  withMap,
  noPackets,
} from '../support/ebpf-node.js'
import { contextOf } from '../support/mode-context.js'
import { service, states, type States } from '../support/states.js'

const skip = cgroupSkip
const noEnding = whyNotEnding() ?? false
const settings = { endpointRules: { allowsLoopback: true } }

t.test('a connection to a Service goes to an endpoint and seems not to', { skip }, async (t) => {
  const { client, start } = await createNode(t, 'tcp')
  const server = await serveTcp('one', '127.0.0.1')
  t.teardown(() => server.close())
  const { mode, apply } = await start()
  t.teardown(() => mode.close())
  const endpoints = [{ ip: '127.0.0.1', port: server.port }]
  const cluster = states('IPv4', settings).put(service({ endpoints }))
  await apply(cluster)
  const ask = (host: string) => client.ask({ do: 'connect', host, port: 80 })
  t.same(await ask('10.96.0.10'), { name: 'one', peer: '10.96.0.10 80' })
  t.same(await ask('::ffff:10.96.0.10'), { name: 'one', peer: '::ffff:10.96.0.10 80' })
  await apply(cluster.put(service({ endpoints: 0 })))
  t.same(await ask('10.96.0.10'), { error: 'ECONNREFUSED' }, 'S19: refused at once')
})

t.test('a connection over IPv6 goes to an endpoint and seems not to', { skip }, async (t) => {
  const { client, start } = await createNode(t, 'tcp6')
  const server = await serveTcp('six', '::1')
  t.teardown(() => server.close())
  const { mode, apply } = await start()
  t.teardown(() => mode.close())
  const endpoints = [{ ip: '::1', port: server.port }]
  await apply(states('IPv6', settings).put(service({ clusterIp: 'fd00:96::10', endpoints })))
  const answer = await client.ask({ do: 'connect', host: 'fd00:96::10', port: 80 })
  t.same(answer, { name: 'six', peer: 'fd00:96::10 80' })
})

t.test('node ports answer on the node, and loopback is the host’s own', { skip }, async (t) => {
  const { client, start } = await createNode(t, 'nodeport')
  const server = await serveTcp('node port', '127.0.0.1')
  t.teardown(() => server.close())
  const { mode, apply } = await start()
  t.teardown(() => mode.close())
  const endpoints = [{ ip: '127.0.0.1', port: server.port }]
  const asked = { ...settings, nodePortAddresses: ['all', 'localhost'] }
  const datagrams = await serveUdp('datagrams', '127.0.0.1')
  t.teardown(() => datagrams.close())
  const udp = { ...dns, endpoints: [{ ip: '127.0.0.1', port: datagrams.port }] }
  await apply(
    states('IPv4', asked).put(
      service({ nodePort: 30999, endpoints }),
      service({ ...udp, nodePort: 30999, externalIps: ['203.0.113.53'] }),
    ),
  )
  const ask = (host: string, from?: string) =>
    client.ask({ do: 'connect', host, port: 30999, ...(from === undefined ? {} : { from }) })
  t.same(await ask('192.0.2.1'), { name: 'node port', peer: '192.0.2.1 30999' })
  t.same(await ask('127.0.0.1'), { name: 'node port', peer: '127.0.0.1 30999' })
  t.same(await ask('127.0.0.1', '127.0.0.1'), { error: 'ECONNREFUSED' }, 'bound to loopback')
  t.same(await ask('0.0.0.0'), { error: 'ECONNREFUSED' }, 'no address of the node')
  const send = (host: string, from?: string, port = 30999) => {
    const where = { socket: host, type: 'udp4', host, port } as const
    return client.ask({ do: 'send', ...where, ...(from === undefined ? {} : { from }) })
  }
  t.same(await send('127.0.0.1'), { name: 'datagrams', peer: '127.0.0.1 30999' })
  // From loopback the kernel sends to no other machine.
  const answer = { error: 'EINVAL' }
  t.same(await send('192.0.2.1', '127.0.0.1'), answer, 'it may be an answer')
  t.same(await send('203.0.113.53', '127.0.0.1', 53), answer, 'a node may have this address')
})

/** A node with the Service `dns`; `serve` sets its endpoints. */
async function createDnsNode(t: Test, name: string) {
  const { client, start } = await createNode(t, name)
  const { mode, apply } = await start()
  t.teardown(() => mode.close())
  const { port, hosts } = await serveOnLoopback(t, 4)
  const cluster = states('IPv4', settings)
  const serve = (left: readonly string[]) =>
    apply(cluster.put(service({ ...dns, endpoints: left.map((ip) => ({ ip, port })) })))
  return { client, serve, hosts, port }
}

/** Servers of one port on loopback addresses, each named by its address. */
async function serveOnLoopback(t: Test, count: number) {
  const first = await serveUdp('127.0.0.11', '127.0.0.11')
  const { port } = first
  const hosts = Array.from({ length: count - 1 }, (_, index) => `127.0.0.${index + 12}`)
  const others = await Promise.all(hosts.map((host) => serveUdp(host, host, port)))
  t.teardown(() => Promise.all([first, ...others].map((server) => server.close())))
  return { port, hosts: ['127.0.0.11', ...hosts] }
}

const dns = { name: 'dns', protocol: 'UDP', clusterIp: '10.96.0.53', port: 53 } as const

t.test('a UDP socket keeps its endpoint, and moves at once when that goes', { skip }, async (t) => {
  const { client, serve, hosts } = await createDnsNode(t, 'udp')
  for (const [type, host] of [
    ['udp4', '10.96.0.53'],
    ['udp6', '::ffff:10.96.0.53'],
  ] as const) {
    await serve(hosts)
    const ask = () => client.ask({ do: 'send', socket: type, type, host, port: 53 })
    const first = await ask()
    t.equal(first.peer, `${host} 53`, 'the Service seems to answer')
    for (let index = 0; index < 10; index++) t.same(await ask(), first)
    await serve(hosts.filter((each) => each !== first.name))
    const second = await ask()
    t.not(second.name, first.name)
    t.equal(second.peer, `${host} 53`)
    await serve([])
    t.same(await ask(), { error: 'ECONNREFUSED' }, 'S19: refused at once')
  }
})

t.test(
  'a connected UDP socket ends when its endpoint goes',
  { skip: skip || noEnding },
  async (t) => {
    const { client, serve, hosts, port } = await createDnsNode(t, 'connected')
    for (const [type, host] of [
      ['udp4', '10.96.0.53'],
      ['udp6', '::ffff:10.96.0.53'],
    ] as const) {
      await serve(hosts)
      const talk = (socket: string, to?: { readonly host: string; readonly port: number }) =>
        client.ask({ do: 'talk', socket: `${type} ${socket}`, type, ...(to ? { to } : {}) })
      const first = await talk('one', { host, port: 53 })
      t.equal(first.peer, `${host} 53`, 'the Service seems to answer')
      t.same(await talk('one'), first)
      const direct = type === 'udp4' ? (first.name ?? '') : `::ffff:${first.name ?? ''}`
      t.equal((await talk('direct', { host: direct, port })).name, first.name)
      await serve(hosts.filter((each) => each !== first.name))
      t.match(await talk('one'), { error: /ECONNABORTED|EDESTADDRREQ/ })
      const again = await talk('another', { host, port: 53 })
      t.not(again.name, first.name)
      t.equal(again.peer, `${host} 53`)
      t.equal((await talk('direct')).name, first.name, 'who asked for the endpoint itself keeps it')
    }
  },
)

t.test(
  'a client of UDP reaches the new endpoint, 100 of 100 times',
  { skip: skip || noEnding },
  async (t) => {
    const { client, start } = await createNode(t, 'replaced')
    const { mode, apply } = await start()
    t.teardown(() => mode.close())
    const { port, hosts } = await serveOnLoopback(t, 2)
    const cluster = states('IPv4', settings)
    const to = { host: '10.96.0.53', port: 53 }
    const talk = (socket: string) => client.ask({ do: 'talk', socket, type: 'udp4', to })
    const send = () => client.ask({ do: 'send', socket: 'free', type: 'udp4', ...to })
    const wrong: string[] = []
    for (let round = 0; round < 100; round++) {
      const ip = hosts[round % 2] ?? ''
      await apply(cluster.put(service({ ...dns, endpoints: [{ ip, port }] })))
      if (round > 0) {
        const old = await client.ask({ do: 'talk', socket: `${round - 1}`, type: 'udp4' })
        if (old.error === undefined)
          wrong.push(`${round}: the old socket still has ${old.name ?? ''}`)
      }
      for (const { name, error } of [await talk(`${round}`), await send()]) {
        if (name !== ip) wrong.push(`${round}: ${name ?? error ?? ''} instead of ${ip}`)
      }
    }
    t.same(wrong, [])
  },
)

t.test('a UDP socket over IPv6 reaches an endpoint', { skip }, async (t) => {
  const { client, start } = await createNode(t, 'udp6')
  const { mode, apply } = await start()
  t.teardown(() => mode.close())
  const server = await serveUdp('six', '::1')
  t.teardown(() => server.close())
  const endpoints = [{ ip: '::1', port: server.port }]
  const host = 'fd00:96::53'
  await apply(states('IPv6', settings).put(service({ ...dns, clusterIp: host, endpoints })))
  const ask = (target: string, port: number) =>
    client.ask({ do: 'send', socket: 'six', type: 'udp6', host: target, port })
  t.same(await ask(host, 53), { name: 'six', peer: `${host} 53` })
})

t.test(
  'one socket that sends to many Services hears each by its own address',
  { skip },
  async (t) => {
    const { client, start } = await createNode(t, 'many')
    const { mode, apply } = await start()
    t.teardown(() => mode.close())
    const { port, hosts } = await serveOnLoopback(t, 8)
    const cluster = states('IPv4', settings)
    for (const [index, ip] of hosts.entries()) {
      const clusterIp = `10.96.0.${index + 1}`
      cluster.put(service({ ...dns, name: `dns-${index}`, clusterIp, endpoints: [{ ip, port }] }))
    }
    await apply(cluster)
    for (let round = 0; round < 2; round++) {
      for (const [index, name] of hosts.entries()) {
        const host = `10.96.0.${index + 1}`
        const answer = await client.ask({ do: 'send', socket: 's', type: 'udp4', host, port: 53 })
        t.same(answer, { name, peer: `${host} 53` })
      }
    }
  },
)

t.test('S21: clients of one network namespace keep their endpoint', { skip }, async (t) => {
  const { client, start } = await createNode(t, 'affinity')
  const { mode, apply } = await start()
  t.teardown(() => mode.close())
  const { port, hosts } = await serveOnLoopback(t, 4)
  const cluster = states('IPv4', settings)
  const serve = (left: readonly string[], affinitySeconds?: number) => {
    const endpoints = left.map((ip) => ({ ip, port }))
    return apply(cluster.put(service({ ...dns, affinitySeconds, endpoints })))
  }
  let sockets = 0
  const ask = async () => {
    const where = { type: 'udp4', host: '10.96.0.53', port: 53 } as const
    return (await client.ask({ do: 'send', socket: `s${++sockets}`, ...where })).name
  }
  const seen = async (count: number) => {
    const names = new Set<string | undefined>()
    for (let index = 0; index < count; index++) names.add(await ask())
    return names
  }
  await serve(hosts)
  t.ok((await seen(40)).size > 1, 'without affinity sockets are spread')
  await serve(hosts, 60)
  const [first] = await seen(1)
  t.same(await seen(20), new Set([first]))
  await serve(
    hosts.filter((host) => host !== first),
    60,
  )
  const moved = await seen(20)
  t.equal(moved.size, 1)
  t.notOk(moved.has(first))
})

t.test('a restart loses nothing: pinned programs translate on', { skip }, async (t) => {
  const { client, start } = await createNode(t, 'restart')
  const bpffs = mountBpffs(t)
  const config = { 'ebpf.bpffs': bpffs } as const
  const server = await serveTcp('one', '127.0.0.1')
  t.teardown(() => server.close())
  const { port, hosts } = await serveOnLoopback(t, 4)
  const cluster = states('IPv4', settings).put(
    service({ endpoints: [{ ip: '127.0.0.1', port: server.port }] }),
    service({ ...dns, endpoints: hosts.map((ip) => ({ ip, port })) }),
  )
  const connect = () => client.ask({ do: 'connect', host: '10.96.0.10', port: 80 })
  const send = () =>
    client.ask({ do: 'send', socket: 's', type: 'udp4', host: '10.96.0.53', port: 53 })
  const before = await start(config)
  await before.apply(cluster)
  const first = await send()
  let isOver = false
  const answers: Answer[] = []
  const connecting = (async () => {
    while (!isOver) answers.push(await connect())
  })()
  // The server is in this thread, and answers only where a step ends.
  const twoMore = async () => {
    const wanted = answers.length + 2
    while (answers.length < wanted) await new Promise(setImmediate)
  }
  await before.mode.close()
  for (let round = 0; round < 8; round++) {
    await twoMore()
    const { mode, apply } = await start(config)
    await twoMore()
    await apply(cluster)
    await twoMore()
    await mode.close()
  }
  isOver = true
  await connecting
  const failed = answers.filter(({ name }) => name !== 'one')
  t.same(failed, [], `none of ${answers.length} connections failed meanwhile`)
  t.same(await connect(), { name: 'one', peer: '10.96.0.10 80' })
  t.same(await send(), first, 'an open socket is known to the new process')
  await cleanupSockets(
    contextOf().context,
    mountsOf('bpf').filter((each) => each === bpffs),
  )
  t.notOk(readdirSync(bpffs).includes('kube-proxy-ts'), 'cleanup leaves nothing')
  t.not((await connect()).name, 'one')
  await t.resolves(cleanupSockets(contextOf().context, [bpffs, '/nowhere']), 'once more is fine')
})

t.test('a pinned link of another cgroup is not taken for ours', { skip }, async (t) => {
  const [one, other] = [await createNode(t, 'cgroup1'), await createNode(t, 'cgroup2')]
  const config = { 'ebpf.bpffs': mountBpffs(t) } as const
  const server = await serveTcp('one', '127.0.0.1')
  t.teardown(() => server.close())
  const endpoints = [{ ip: '127.0.0.1', port: server.port }]
  const cluster = states('IPv4', settings).put(service({ endpoints }))
  for (const { client, start } of [one, other]) {
    const { mode, apply } = await start(config)
    await apply(cluster)
    t.equal((await client.ask({ do: 'connect', host: '10.96.0.10', port: 80 })).name, 'one')
    await mode.close()
  }
  const left = await one.client.ask({ do: 'connect', host: '10.96.0.10', port: 80 })
  t.not(left.name, 'one', 'what was attached to the first is gone')
})

t.test('programs that somebody detached are noticed and attached again', { skip }, async (t) => {
  const { client, cgroup, mode, apply, resyncs } = await createGuardedNode(t, 'guard')
  const server = await serveTcp('one', '127.0.0.1')
  t.teardown(() => server.close())
  const endpoints = [{ ip: '127.0.0.1', port: server.port }]
  const cluster = states('IPv4', settings).put(service({ endpoints }))
  await apply(cluster)
  detachAll(cgroup)
  while (resyncs.length === 0) await new Promise((resolve) => setTimeout(resolve, 10))
  t.match(resyncs[0], /somebody detached the eBPF program at \w+/)
  mode.forget()
  await apply(cluster.put(service({ endpoints, nodePort: 30001 })))
  t.equal((await client.ask({ do: 'connect', host: '10.96.0.10', port: 80 })).name, 'one')
})

t.test('programs of a process that forgot them are detached at the start', { skip }, async (t) => {
  const { cgroup, client, start } = await createNode(t, 'orphans')
  const server = await serveTcp('one', '127.0.0.1')
  t.teardown(() => server.close())
  const cluster = (endpoints: number) =>
    states('IPv4', settings).put(
      service({ endpoints: endpoints === 0 ? 0 : [{ ip: '127.0.0.1', port: server.port }] }),
    )
  const [orphan, fresh] = [await start(), await start()]
  t.teardown(() => Promise.all([orphan, fresh].map(({ mode }) => mode.close())))
  await orphan.apply(cluster(0))
  await fresh.apply(cluster(1))
  const opened = openCgroup(cgroup)
  const attached = attachedPrograms(openSystemCalls(), opened.fd, 'connect4')
  opened.close()
  t.equal(attached.length, 1)
  t.equal((await client.ask({ do: 'connect', host: '10.96.0.10', port: 80 })).name, 'one')
})

t.test('maps are compared with what they should hold', { skip }, async (t) => {
  const { cgroup, start } = await createNode(t, 'differences')
  const definition = ebpfMode(noPackets)
  const config = configWith({ 'ebpf.cgroup': cgroup })
  const whole = (cluster: States) => definition.differences(cluster.take(), config)
  const web = service({ nodePort: 30080, affinitySeconds: 9 })
  const empty = service({ name: 'empty', clusterIp: '10.96.0.11', endpoints: 0 })
  const ip6 = service({ clusterIp: 'fd00:96::10' })
  const [cluster, cluster6] = [states().put(web, empty), states('IPv6').put(ip6)]
  t.match(await whole(states().put(web)), [{ isWhole: true }], 'nothing is attached yet')
  const { mode, apply } = await start()
  t.teardown(() => mode.close())
  await apply(cluster)
  await apply(cluster6)
  t.same(await whole(states().put(web, empty)), [])
  t.same(await whole(states('IPv6').put(ip6)), [])
  const other = states().put(service({ ...web, endpoints: 1 }), service({ ...empty, port: 81 }))
  const lines = (await whole(other)).map(({ expected, found }) => [expected, found])
  t.same(lines.sort(), [
    [undefined, '10.180.0.2:8080 that clients of service default/web:http/TCP may keep'],
    [undefined, 'entry 0a60000b00500600'],
    ['frontend 10.96.0.10:80 TCP -> 10.180.0.1:8080, the same for 9 s', both('10.96.0.10:80')],
    ['frontend 10.96.0.11:81 TCP -> refused', undefined],
    ['frontend node port 30080 TCP -> 10.180.0.1:8080, the same for 9 s', both('node port 30080')],
  ])
  const longer = states().put(service({ ...web, affinitySeconds: 99 }), empty)
  t.match(
    (await whole(longer)).find(({ expected }) => expected === both('10.96.0.10:80', 99)),
    { found: both('10.96.0.10:80') },
  )
  withMap(cgroup, 'members', (map) => {
    for (const [key] of map.entries()) map.delete(key)
  })
  t.match(await whole(states().put(web, empty)), [
    { expected: '10.180.0.1:8080 that clients of service default/web:http/TCP may keep' },
    { expected: '10.180.0.2:8080 that clients of service default/web:http/TCP may keep' },
  ])
  withMap(cgroup, 'members', (map) => {
    const key = (host: number) =>
      memberKey('IPv4', targetId('default/web:http/TCP'), { ip: `10.180.0.${host}`, port: 8080 })
    map.update(key(1), Buffer.of(memberValues.keepsClients))
    map.update(key(2), Buffer.of(memberValues.takesClients))
    map.update(key(3), Buffer.of(memberValues.takesClients))
  })
  const may = (host: number, who: string) =>
    `10.180.0.${host}:8080 that ${who} of service default/web:http/TCP may keep`
  t.match(await whole(states().put(web, empty)), [
    { expected: may(1, 'clients'), found: may(1, 'only open sockets') },
    { expected: undefined, found: may(3, 'clients') },
  ])
  mode.forget()
  await apply(cluster)
  withMap(cgroup, 'services', (map) => {
    for (const [key, value] of map.entries())
      map.update(key, value.fill(1, serviceEntry.id, serviceEntry.turn))
  })
  t.equal(
    (await whole(states().put(web, empty)))[0]?.found,
    `${both('10.96.0.10:80')}, as another service`,
  )
  mode.forget()
  await apply(cluster)
  await apply(cluster6)
  const [opened, calls] = [openCgroup(cgroup), openSystemCalls()]
  t.teardown(() => opened.close())
  const detach = (hook: 'sock_ops' | 'sendmsg4' | 'connect4') => {
    const [attached] = attachedPrograms(calls, opened.fd, hook)
    forEachCgroupLink(calls, opened.id, (link, { programId }) => {
      if (programId === attached?.id) detachLink(calls, link)
    })
  }
  const missing = (hook: string) => ({ expected: `the socket program at ${hook}` })
  detach('sendmsg4')
  t.match(await whole(states().put(web, empty)), [missing('sendmsg4')])
  t.same(await whole(states('IPv6').put(ip6)), [], 'the other family has its own')
  detach('sock_ops')
  t.match(await whole(states().put(web, empty)), [missing('sock_ops'), missing('sendmsg4')])
  t.match(await whole(states('IPv6').put(ip6)), [missing('sock_ops')], 'both families need it')
  detach('connect4')
  t.match(await whole(states().put(web, empty)), [{ isWhole: true }], 'its program is missing')
})

const both = (frontend: string, seconds = 9) =>
  `frontend ${frontend} TCP -> 10.180.0.1:8080, 10.180.0.2:8080, the same for ${seconds} s`

t.test('tables grow when a plan no longer fits', { skip }, async (t) => {
  const { client, start } = await createNode(t, 'growth')
  const server = await serveTcp('one', '127.0.0.1')
  t.teardown(() => server.close())
  const { mode, apply } = await start()
  t.teardown(() => mode.close())
  const endpoints = [{ ip: '127.0.0.1', port: server.port }]
  const cluster = states('IPv4', settings)
  for (let index = 1; index <= 200; index++) {
    const clusterIp = `10.96.1.${index}`
    await apply(cluster.put(service({ name: `web-${index}`, clusterIp, endpoints })))
  }
  for (const host of ['10.96.1.1', '10.96.1.64', '10.96.1.65', '10.96.1.200']) {
    t.equal((await client.ask({ do: 'connect', host, port: 80 })).name, 'one', host)
  }
})

t.test(
  'one Service that outgrows a table keeps no other from its endpoints',
  { skip },
  async (t) => {
    const { client, start } = await createNode(t, 'outgrown')
    const server = await serveTcp('one', '127.0.0.1')
    t.teardown(() => server.close())
    const { mode, apply } = await start()
    t.teardown(() => mode.close())
    const cluster = states('IPv4', settings)
    const dns = (endpoints: number) =>
      service({ name: 'dns', clusterIp: '10.96.0.11', protocol: 'UDP', port: 53, endpoints })
    const web = (port: number) => service({ endpoints: [{ ip: '127.0.0.1', port }] })
    await apply(cluster.put(web(9), dns(10)))
    await apply(cluster.put(web(server.port), dns(250)))
    t.equal((await client.ask({ do: 'connect', host: '10.96.0.10', port: 80 })).name, 'one')
  },
)

t.test('CAP_BPF and CAP_NET_ADMIN are enough for every program', { skip }, async (t) => {
  fewCapabilities(t)
})

t.test('the mode does not run beside the socket programs of others', { skip }, async (t) => {
  const folder = addNodeCgroup('cilium')
  const below = join(folder, 'below')
  mkdirSync(below)
  t.teardown(async () => {
    await removeCgroup(below)
    await removeCgroup(folder)
  })
  const calls = openSystemCalls()
  const cgroup = openCgroup(folder)
  const code = new Assembler().set('r0', 1).exit().finish()
  const program = loadProgram(calls, { name: 'cil_sock4_conne', hook: 'connect4', code })
  const link = createLink(calls, { hook: 'connect4', program, cgroup: cgroup.fd })
  const { log } = contextOf().context
  const probe = (where: string) =>
    probeSockets({ settings: { cgroup: where, bpffs: '', sockets: 'all' }, log }).filter(
      ({ ok, required }) => required && !ok,
    )
  for (const where of [folder, below]) {
    const found = [{ seen: 'cil_sock4_conne of Cilium', fix: /replacement of Cilium/ }]
    t.match(probe(where), found, 'it translates for cgroups below it, too')
  }
  for (const fd of [link, program]) calls.close(fd)
  t.same([...probe(folder), ...probe(below)], [])
  // Without a flag nothing else may be attached here, nor below. This way has no link.
  const alone = loadProgram(calls, { name: 'alone', hook: 'connect4', code })
  const [attachWithoutLink, connect4] = [8, 10]
  const place = new Attributes(calls, 12).u32(0, cgroup.fd).u32(4, alone).u32(8, connect4)
  t.equal(calls.bpf(attachWithoutLink, place.bytes), 0)
  for (const where of [folder, below]) {
    const found = [{ seen: /EPERM.* alone$/, fix: /BPF_F_ALLOW_MULTI/ }]
    t.match(probe(where), found, 'a program that shares its hook with none')
  }
  calls.close(alone)
  cgroup.close()
})
