import { rmSync } from 'node:fs'
import t, { type Test } from 'tap'
import { whyNotEnding } from '../../lib/modes/ebpf/stale-sockets.js'
import { runCommand } from '../support/run-command.js'
import { ownedName } from '../../lib/lab/world/namespaces.js'
import { daemonNumbers } from '../../lib/inspect/top/daemon-numbers.js'
import { cgroupSkip, serveTcp, serveUdp } from '../support/cgroup-client.js'
import { createNode, detachAll, mountBpffs } from '../support/ebpf-node.js'
import { startRawClient } from '../support/raw-client.js'
import { service, states } from '../support/states.js'

const skip = cgroupSkip
const noEnding = whyNotEnding() ?? false
const settings = { endpointRules: { allowsLoopback: true } }

async function createRawNode(t: Test, name: string) {
  const { cgroup, start } = await createNode(t, name)
  const raw = startRawClient(cgroup)
  t.teardown(() => raw.close())
  const started = await start()
  t.teardown(() => started.mode.close())
  return { cgroup, raw, ...started }
}

const dns = { name: 'dns', protocol: 'UDP', clusterIp: '10.96.0.53', port: 53 } as const

t.test('io_uring, TCP Fast Open and MPTCP are translated, too', { skip }, async (t) => {
  const { raw, apply, page } = await createRawNode(t, 'raw')
  const server = await serveTcp('one', '127.0.0.1')
  t.teardown(() => server.close())
  const endpoints = [{ ip: '127.0.0.1', port: server.port }]
  await apply(states('IPv4', settings).put(service({ endpoints })))
  const ways = {
    io_uring: '10.96.0.10 80',
    fastopen: '10.96.0.10 80',
    mptcp: `127.0.0.1 ${server.port}`,
  }
  let connections = 0
  for (const how of ['io_uring', 'fastopen', 'mptcp'] as const) {
    const [name, peer] = await raw.ask({ do: how, host: '10.96.0.10', port: 80 })
    if (missing.has(name)) {
      t.comment(`this kernel has no ${how}: ${name}`)
      continue
    }
    connections++
    // An MPTCP socket has the peer of a socket below it, which no program can recognize.
    t.same([name, peer], ['one', ways[how]], how)
  }
  t.equal(daemonNumbers(await page()).get('default/web:http/TCP')?.total, connections)
})

const missing = new Set<string | undefined>(['EPROTONOSUPPORT', 'ENOPROTOOPT', 'ENOSYS', 'EPERM'])

t.test('a connected UDP socket that connects anew belongs to the new peer', { skip }, async (t) => {
  const { raw, apply, page } = await createRawNode(t, 'anew')
  const [one, two] = [await serveUdp('one', '127.0.0.1'), await serveUdp('two', '127.0.0.1')]
  for (const server of [one, two]) t.teardown(() => server.close())
  const endpoints = [{ ip: '127.0.0.1', port: one.port }]
  await apply(states('IPv4', settings).put(service({ ...dns, endpoints })))
  const to = { host: '10.96.0.53', port: 53 }
  const direct = { host: '127.0.0.1', port: two.port }
  const nobody = { host: '0.0.0.0', port: 0 }
  const isTranslated = noEnding === false
  const asked = isTranslated ? [to, to, direct, to, nobody, direct] : [direct, nobody, direct]
  const answers = await raw.ask({ do: 'reconnect', to: asked })
  const [service53, other] = [
    ['one', '10.96.0.53 53'],
    ['two', `127.0.0.1 ${two.port}`],
  ]
  const alone = ['EAGAIN', 'ENOTCONN']
  const parts = isTranslated
    ? [service53, service53, other, service53, alone, other]
    : [other, alone, other]
  t.same(answers, parts.flat())
  if (isTranslated) {
    const numbers = daemonNumbers(await page()).get('default/dns:http/UDP')
    t.match(numbers, { total: 3, open: 0 }, 'nothing is left of it')
  }
})

t.test(
  'a connected UDP socket that was closed unseen is not open for good',
  { skip: skip || noEnding },
  async (t) => {
    const { cgroup, raw, mode, apply, page } = await createRawNode(t, 'unseen')
    const server = await serveUdp('one', '127.0.0.1')
    t.teardown(() => server.close())
    const endpoints = [{ ip: '127.0.0.1', port: server.port }]
    const cluster = states('IPv4', settings).put(service({ ...dns, endpoints }))
    const open = async () => daemonNumbers(await page()).get('default/dns:http/UDP')?.open
    await apply(cluster)
    const to = { host: '10.96.0.53', port: 53 }
    await raw.ask({ do: 'hold', how: 'udp', ...to, count: 3 })
    t.equal(await open(), 3)
    detachAll(cgroup)
    await raw.ask({ do: 'close', count: 2 })
    mode.forget()
    await apply(cluster)
    t.equal(await open(), 1, 'the one that is open is known')
  },
)

t.test(
  'a restart ends no connected UDP socket of the family that is written last',
  { skip: skip || noEnding },
  async (t) => {
    const { client, start } = await createNode(t, 'both')
    const bpffs = mountBpffs(t)
    const asked = {
      IPv4: { type: 'udp4', host: '10.96.0.53', ip: '127.0.0.1' },
      IPv6: { type: 'udp6', host: 'fd00:96::53', ip: '::1' },
    } as const
    const serve = async (family: keyof typeof asked) => {
      const { host: clusterIp, ip } = asked[family]
      const server = await serveUdp(family, ip)
      t.teardown(() => server.close())
      const spec = service({ ...dns, clusterIp, endpoints: [{ ip, port: server.port }] })
      return states(family, settings).put(spec)
    }
    const clusters = { IPv4: await serve('IPv4'), IPv6: await serve('IPv6') }
    const talk = async (family: keyof typeof asked, to?: { host: string; port: number }) => {
      const { type } = asked[family]
      return client.ask({ do: 'talk', socket: family, type, ...(to ? { to } : {}) })
    }
    for (const order of [['IPv4', 'IPv6'] as const, ['IPv6', 'IPv4'] as const]) {
      const { mode, apply } = await start({ 'ebpf.bpffs': bpffs })
      for (const family of order) await apply(clusters[family])
      for (const family of order) {
        const to = order[0] === 'IPv4' ? { host: asked[family].host, port: 53 } : undefined
        t.equal((await talk(family, to)).name, family)
      }
      await mode.close()
    }
  },
)

t.test(
  'a connected UDP socket ends when its Service gives up the address that it asked for',
  { skip: skip || noEnding },
  async (t) => {
    const { client, start } = await createNode(t, 'moved')
    const { mode, apply } = await start()
    t.teardown(() => mode.close())
    for (const [family, type, ip, net, prefix] of [
      ['IPv4', 'udp4', '127.0.0.1', '192.0.2.', ''],
      ['IPv4', 'udp6', '127.0.0.1', '192.0.2.', '::ffff:'],
      ['IPv6', 'udp6', '::1', '2001:db8::', ''],
    ] as const) {
      const [kept, moved, node] = [`${net}8`, `${net}7`, `${net}1`]
      const server = await serveUdp('one', ip)
      t.teardown(() => server.close())
      const endpoints = [{ ip, port: server.port }]
      const own = (clusterIp: string, nodePort: number, externalIps: readonly string[]) =>
        service({ ...dns, clusterIp: `${net}${clusterIp}`, nodePort, externalIps, endpoints })
      const other = service({
        ...{ ...dns, name: 'other', clusterIp: `${net}55`, externalIps: [moved] },
        endpoints: [{ ip, port: server.port + 1 }],
      })
      const cluster = states(family, settings)
      const asked = [`${net}53 53`, `${node} 30053`, `${kept} 53`, `${moved} 53`]
      const talk = (to: string, isNew = false) => {
        const [host = '', port] = to.split(' ')
        const connects = isNew ? { to: { host: `${prefix}${host}`, port: Number(port) } } : {}
        return client.ask({ do: 'talk', socket: `${type} ${prefix}${to}`, type, ...connects })
      }
      await apply(cluster.put(own('53', 30053, [kept, moved])))
      for (const to of asked) t.equal((await talk(to, true)).name, 'one', to)
      const stay = async () => {
        const left: string[] = []
        for (const to of asked) if ((await talk(to)).name === 'one') left.push(to)
        return left
      }
      await apply(cluster.put(own('53', 30053, [kept]), other))
      t.same(await stay(), asked.slice(0, 3), 'another Service has the address')
      await apply(cluster.put(own('53', 30054, [kept])))
      t.same(await stay(), [asked[0], asked[2]], 'the node port changed')
      await apply(cluster.put(own('54', 30054, [kept])))
      t.same(await stay(), [asked[2]], 'the ClusterIP changed')
    }
  },
)

t.test(
  'sockets of 1,000 network namespaces are translated, counted and ended',
  { skip: skip || noEnding },
  async (t) => {
    const { raw, apply, page } = await createRawNode(t, 'many')
    const paths = Array.from({ length: 1000 }, (_, index) => `/run/netns/${ownedName(`${index}`)}`)
    t.teardown(async () => {
      await runCommand('umount', paths)
      for (const path of paths) rmSync(path, { force: true })
    })
    const cluster = states('IPv4', settings)
    const serve = (port: number) =>
      apply(cluster.put(service({ ...dns, endpoints: [{ ip: '127.0.0.1', port }] })))
    await serve(1053)
    t.same(await raw.ask({ do: 'namespaces', host: '10.96.0.53', port: 53, paths }), [])
    const numbers = async () => daemonNumbers(await page()).get('default/dns:http/UDP')
    t.match(await numbers(), { open: 1000, total: 1000 })
    await serve(1054)
    const errors = await raw.ask({ do: 'errors' })
    t.equal(errors.filter((error) => error === 'ECONNABORTED').length, 1000)
    t.equal((await numbers())?.open ?? 0, 0)
  },
)
