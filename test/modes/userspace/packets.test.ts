import { createSocket } from 'node:dgram'
import { openSync, readFileSync, writeFileSync } from 'node:fs'
import { once } from 'node:events'
import { connect, createServer, type Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { dataPathLoaders } from '../../../lib/modes/userspace/datapath/create-data-path.js'
import { DescriptorBudget } from '../../../lib/modes/userspace/datapath/descriptors.js'
import { UserspaceMode } from '../../../lib/modes/userspace/userspace-mode.js'
import { joinNetworkNamespace } from '../../../lib/lab/world/namespaces.js'
import { addressOf, bridgeName, families, ranges } from '../../../lib/lab/world/topology.js'
import { createWorld } from '../../../lib/lab/world/world.js'
import { runCommand } from '../../support/run-command.js'
import { service, states, testSettings } from '../../support/states.js'
import type { Mode, ModeContext } from '../../../lib/modes/mode.js'
import type { IpFamily } from '../../../lib/state/ip.js'
import type { Place } from '../../../lib/lab/world/topology.js'
import type { States } from '../../support/states.js'
import { patienceMs } from '../../support/until.js'

const skip = process.getuid?.() === 0 ? false : 'needs root for network namespaces'

const virtual = {
  cluster: { IPv4: '10.96.0.10', IPv6: 'fd00:10:96::10' },
  balancer: { IPv4: '203.0.113.10', IPv6: '2001:db8:203::10' },
  external: { IPv4: '198.51.100.10', IPv6: '2001:db8:198::10' },
}
const protocols = ['TCP', 'UDP'] as const

t.test('userspace mode serves real packets', { skip }, async (t) => {
  const world = await createWorld({ name: 'us' })
  const home = openSync('/proc/self/ns/net', 'r')
  // Threads and programs that start after this are on the node, and so is the mode.
  joinNetworkNamespace(world.namespaces.node)

  const log: string[] = []
  const note = (fields: object, message: string) => log.push(`${message} ${JSON.stringify(fields)}`)
  let resyncs = 0
  let afterResync = () => {}
  const context: ModeContext = {
    log: { debug: note, info: note, warn: note, error: note },
    resync: () => {
      resyncs++
      afterResync()
    },
    meter: { count() {}, gauge() {}, observe() {}, forget() {} },
  }
  // Endpoints see an address of this node, as in the original design.
  const settings = {
    ...testSettings,
    sourceAddress: 'hide' as const,
    syncPeriodMs: 200,
    workers: 2,
  }
  const mode: Mode = await UserspaceMode.create(settings, families, context)
  t.teardown(async () => {
    // The world ends every process that is still inside, so this one leaves first.
    joinNetworkNamespace(`../../proc/self/fd/${home}`)
    await world.close()
  })
  const clusters = new Map(families.map((family) => [family, clusterOf(family)]))
  const sync = async (full = false) => {
    if (full) mode.forget()
    const failed = []
    for (const cluster of clusters.values()) {
      const applied = await mode.apply(mode.plan(cluster.take()))
      failed.push(...applied.failed)
    }
    return failed
  }
  const put = (spec: Parameters<typeof serviceOf>[1]) => {
    for (const [family, cluster] of clusters) cluster.put(...serviceOf(family, spec))
    return sync()
  }
  const flow = async (from: Place, host: string, port: number, extra: object = {}) =>
    (
      await world.agent(from).flow({ protocol: 'TCP', host, port, timeoutMs: patienceMs, ...extra })
    ).map(({ outcome, backend, source }) => ({ outcome, backend, source }))

  type Destination = readonly [from: Place, host: string, port: number]

  /** Asks once over each protocol and family. */
  const expectOutcomes = async (
    t: Test,
    destinationsOf: (family: (typeof families)[number]) => readonly Destination[],
    outcomeFor = (_from: Place, _protocol: (typeof protocols)[number]) => 'reply',
  ) => {
    for (const family of families) {
      for (const protocol of protocols) {
        for (const [from, host, port] of destinationsOf(family)) {
          const [result] = await flow(from, host, port, { protocol })
          const expected = outcomeFor(from, protocol)
          t.equal(result?.outcome, expected, `${protocol} from ${from} to ${host}:${port}`)
        }
      }
    }
  }

  /** Nothing comes back, so the wait is short. */
  const inVain = { timeoutMs: 700 }

  const everywhere = { pods: ['pod-1', 'pod-2', 'pod-4'] as const, nodePort: 30080 }

  await t.test('US01, US07, US08, US22: every address answers every client', async (t) => {
    t.same(await put(everywhere), [])
    await expectOutcomes(t, (family) => [
      ['client-pod', virtual.cluster[family], 80],
      ['pod-1', virtual.cluster[family], 80],
      ['node', virtual.cluster[family], 80],
      ['client-pod', virtual.balancer[family], 80],
      ['outside', virtual.balancer[family], 80],
      ['node', virtual.balancer[family], 80],
      ['outside', virtual.external[family], 80],
      ['client-pod', virtual.external[family], 80],
      ['outside', addressOf('node', family), 30080],
      ['outside', addressOf('node', family, 1), 30080],
      ['client-pod', addressOf('node', family), 30080],
      ['node', addressOf('node', family), 30080],
      ['node', addressOf('node', family, 2), 30080],
      ['node', family === 'IPv4' ? '127.0.0.1' : '::1', 30080],
    ])
  })
  await t.test('US60, US21: endpoints answer in turn, and do not see the client', async (t) => {
    for (const family of families) {
      const host = virtual.cluster[family]
      const results = await flow('client-pod', host, 80, { count: 6 })
      const counts = new Map<string, number>()
      for (const { backend = 'none' } of results) {
        counts.set(backend, (counts.get(backend) ?? 0) + 1)
      }
      t.same(Object.fromEntries(counts), { 'pod-1': 2, 'pod-2': 2, 'pod-4': 2 })
      t.not(results[0]?.source, addressOf('client-pod', family))
    }
  })

  await t.test('a proxy port refuses direct connections', async (t) => {
    const { stdout } = await runCommand('iptables-save', ['-t', 'nat'])
    const port = Number(/web-tcp.*--to-\S+ \S*:(\d+)/.exec(stdout)?.[1])
    t.ok(port > 0)
    t.match(await flow('outside', addressOf('node', 'IPv4'), port), [{ outcome: 'refused' }])
  })

  await t.test('US11: every address answers also where the firewall closes INPUT', async (t) => {
    const firewall = async (policy: string, verb: string) => {
      for (const program of ['iptables', 'ip6tables']) {
        const open = [
          'INPUT',
          '-m',
          'conntrack',
          '--ctstate',
          'ESTABLISHED,RELATED',
          '-j',
          'ACCEPT',
        ]
        await runCommand(program, [verb, ...open])
        await runCommand(program, ['-P', 'INPUT', policy])
      }
      // Neighbours must find each other.
      await runCommand('ip6tables', [verb, 'INPUT', '-p', 'ipv6-icmp', '-j', 'ACCEPT'])
    }
    // Without a node port, whose listener may be the same.
    await put({ pods: everywhere.pods })
    await firewall('DROP', '-A')
    await expectOutcomes(t, (family) => [
      ['client-pod', virtual.cluster[family], 80],
      ['outside', virtual.balancer[family], 80],
      ['outside', virtual.external[family], 80],
    ])
    await firewall('ACCEPT', '-D')
    await put(everywhere)
  })

  await t.test('S19: without endpoints every client is refused at once', async (t) => {
    await put({ ...everywhere, pods: [] })
    // A program on the node gets EPERM when it sends by UDP.
    await expectOutcomes(
      t,
      (family) => [
        ['client-pod', virtual.cluster[family], 80],
        ['node', virtual.cluster[family], 80],
        ['outside', virtual.balancer[family], 80],
        ['node', virtual.balancer[family], 80],
        ['outside', addressOf('node', family), 30080],
        ['node', addressOf('node', family), 30080],
      ],
      (from, protocol) => (from === 'node' && protocol === 'UDP' ? 'unreachable' : 'refused'),
    )
    await put(everywhere)
    t.match(await flow('client-pod', virtual.cluster.IPv4, 80), [{ outcome: 'reply' }])
  })

  await t.test('S17, S18: external policy Local binds clients outside', async (t) => {
    for (const pods of [['pod-1', 'pod-4'], ['pod-4']] as const) {
      await put({ pods, nodePort: 30080, externalPolicyLocal: true })
      const [own] = pods
      for (const family of families) {
        for (const [host, port] of [
          [virtual.balancer[family], 80],
          [addressOf('node', family), 30080],
        ] as const) {
          const patience = own === 'pod-4' ? inVain : {}
          const outside = await flow('outside', host, port, { count: 3, ...patience })
          if (own === 'pod-4') t.match(outside, Array(3).fill({ outcome: 'dropped' }), host)
          else t.match(outside, Array(3).fill({ outcome: 'reply', backend: 'pod-1' }), host)
          for (const place of ['client-pod', 'node'] as const) {
            const backends = await flow(place, host, port, { count: pods.length })
            t.same(backends.map(({ backend }) => backend).sort(), [...pods].sort(), place)
          }
        }
      }
    }
  })

  await t.test('S16: internal policy Local uses local endpoints only', async (t) => {
    await put({ pods: ['pod-1', 'pod-4'], internalPolicyLocal: true })
    const host = virtual.cluster.IPv4
    t.match(await flow('client-pod', host, 80, { count: 2 }), Array(2).fill({ backend: 'pod-1' }))
    await put({ pods: ['pod-4'], internalPolicyLocal: true })
    t.match(await flow('client-pod', host, 80, inVain), [{ outcome: 'dropped' }])
  })

  await t.test('S12, S13: source ranges apply to load-balancer addresses', async (t) => {
    const allowed = [
      `${addressOf('outside', 'IPv4', 1)}/32`,
      `${addressOf('outside', 'IPv6', 1)}/128`,
    ]
    await put({ ...everywhere, sourceRanges: allowed })
    for (const family of families) {
      const host = virtual.balancer[family]
      const from = addressOf('outside', family, 1)
      t.match(await flow('outside', host, 80, { from }), [{ outcome: 'reply' }])
      t.match(await flow('outside', host, 80, inVain), [{ outcome: 'dropped' }])
      t.match(await flow('client-pod', host, 80, inVain), [{ outcome: 'dropped' }])
      t.match(await flow('outside', virtual.external[family], 80), [{ outcome: 'reply' }])
      t.match(await flow('outside', addressOf('node', family), 30080), [{ outcome: 'reply' }])
    }
  })

  await t.test('pods are served behind an interface that has no address', async (t) => {
    await put(everywhere)
    // So Calico and others connect pods: their router's address is not on their interface.
    const router = `${addressOf('node', 'IPv4', 2)}/32`
    const pods = [ranges.pods.IPv4, 'dev', bridgeName]
    await runCommand('ip', ['-4', 'address', 'flush', 'dev', bridgeName])
    await runCommand('ip', ['address', 'add', router, 'dev', 'lo'])
    await runCommand('ip', ['route', 'add', ...pods])
    for (const protocol of protocols) {
      for (const host of [virtual.cluster.IPv4, virtual.balancer.IPv4]) {
        t.match(await flow('client-pod', host, 80, { protocol }), [{ outcome: 'reply' }], host)
      }
      const atNode = await flow('client-pod', addressOf('node', 'IPv4'), 30080, { protocol })
      t.match(atNode, [{ outcome: 'reply' }])
    }
    await runCommand('ip', ['address', 'delete', router, 'dev', 'lo'])
    await runCommand('ip', ['address', 'add', `${router.slice(0, -2)}24`, 'dev', bridgeName])
  })

  await t.test('US16, US17: flushed rules return, and added rules are removed', async (t) => {
    await put(everywhere)
    const stop = new AbortController()
    const running = mode.run(stop.signal)
    await sleep(500)
    t.equal(resyncs, 0, 'no false alarm')
    const chain = 'KUBE-PORTALS-CONTAINER'
    afterResync = () => mode.forget()
    await runCommand('iptables', ['-t', 'nat', '-F', chain])
    while (resyncs === 0) await sleep(50)
    await sleep(1000)
    t.equal(resyncs, 1, 'it is told once until everything is written anew')
    afterResync = () => {}
    t.match(await flow('client-pod', virtual.cluster.IPv4, 80, inVain), [{ outcome: 'dropped' }])
    await sync(true)
    t.match(await flow('client-pod', virtual.cluster.IPv4, 80), [{ outcome: 'reply' }])
    // This rule is the first of its chain, and sends all packets to a port without a listener.
    const stray = ['-I', chain, '-p', 'tcp', '-d', virtual.cluster.IPv4, '-j', 'REDIRECT']
    await runCommand('iptables', ['-t', 'nat', ...stray, '--to-ports', '9'])
    const before = resyncs
    while (resyncs === before) await sleep(50)
    stop.abort()
    await running
    t.match(await flow('client-pod', virtual.cluster.IPv4, 80), [{ outcome: 'refused' }])
    await sync(true)
    t.match(await flow('client-pod', virtual.cluster.IPv4, 80), [{ outcome: 'reply' }])
  })

  await t.test('US13: a node port in use is reported, and served once it is free', async (t) => {
    const squatter = createServer().listen(30081, '0.0.0.0')
    await once(squatter, 'listening')
    const failed = await put({ ...everywhere, nodePort: 30081 })
    t.match(failed, [{ key: 'default/web-tcp:http/TCP', event: 'PortConflict' }])
    t.match(await flow('client-pod', virtual.cluster.IPv4, 80), [{ outcome: 'reply' }])
    squatter.close()
    await once(squatter, 'close')
    t.same(await sync(), [], 'tried again without any change')
    t.match(await flow('outside', addressOf('node', 'IPv4'), 30081), [{ outcome: 'reply' }])
  })

  for (const [name, load] of Object.entries(dataPathLoaders)) {
    await t.test(`${name}: a datagram too large for the way moves no client`, async (t) => {
      const far = ['pod-4', 'pod-5'] as const
      for (const pod of far) {
        const link = ['dev', `v${pod}`, 'mtu', 'lock', '1300']
        await world.exec('node-2', ['ip', 'route', 'replace', addressOf(pod, 'IPv4'), ...link])
      }
      // The kernel remembers what it learned of a way, and then loses no datagram.
      await runCommand('ip', ['route', 'flush', 'cache'])
      const ends: string[] = []
      const path = (await load())({
        ...{ now: () => performance.now(), random: Math.random, passiveHealth: true },
        descriptors: new DescriptorBudget(DescriptorBudget.allocate(200)),
        ...{ accessLog: ({ end }) => ends.push(end), warn: () => undefined },
      })
      t.teardown(() => path.drain(0))
      const endpoints = far.map((pod) => ({ key: pod, ip: addressOf(pod, 'IPv4'), port: 8080 }))
      const port = await path.open({
        ...{ key: 'quic', service: 'default/quic', protocol: 'UDP', address: '127.0.0.1', port: 0 },
        ...{ endpoints, servingKeys: [], affinityMs: undefined, udpIdleMs: 600_000 },
      })
      const client = createSocket('udp4')
      t.teardown(() => void client.close())
      let answer = ''
      client.on('message', (message) => (answer = String(message)))
      const ask = async (size: number) => {
        answer = ''
        while (answer.length < size) {
          client.send('x'.repeat(size), port, '127.0.0.1')
          await sleep(100)
        }
        const { backend, port: seen } = JSON.parse(answer) as { backend: string; port: number }
        return { backend, seen }
      }
      const before = await ask(10)
      t.same(await ask(1400), before)
      t.same(ends, [])
    })
  }

  for (const [name, load] of Object.entries(dataPathLoaders)) {
    await t.test(`${name}: a client waits while no port is left for its endpoint`, async (t) => {
      const ports = '/proc/sys/net/ipv4/ip_local_port_range'
      const before = readFileSync(ports, 'utf8')
      const server = createServer((socket) => {
        socket.on('error', () => undefined).write('hi')
      }).listen(0, '127.0.0.1')
      await once(server, 'listening')
      const [endpoint] = [server.address()].flatMap((at) =>
        typeof at === 'object' && at ? { key: 'a', ip: '127.0.0.1', port: at.port } : [],
      )
      const warnings: string[] = []
      let onWarning = () => {}
      const path = (await load())({
        ...{ now: () => performance.now(), random: Math.random, passiveHealth: true },
        descriptors: new DescriptorBudget(DescriptorBudget.allocate(200)),
        accessLog: undefined,
        warn: (text) => {
          warnings.push(text)
          onWarning()
        },
      })
      const port = await path.open({
        ...{ key: 'web', service: 'default/web', protocol: 'TCP', address: '127.0.0.1', port: 0 },
        endpoints: endpoint ? [endpoint] : [],
        ...{ servingKeys: [], affinityMs: undefined, udpIdleMs: 250 },
      })
      writeFileSync(ports, '40000 40001')
      const clients: Socket[] = []
      t.teardown(async () => {
        writeFileSync(ports, before)
        for (const client of clients) client.destroy()
        server.close()
        await path.drain(0)
      })
      const answerOf = async (localPort: number) => {
        const client = connect({ host: '127.0.0.1', port, localPort })
        clients.push(client)
        const [answer] = (await once(client, 'data')) as [Buffer]
        return String(answer)
      }
      for (const localPort of [41_001, 41_002]) t.equal(await answerOf(localPort), 'hi')
      onWarning = () => void clients[0]?.resetAndDestroy()
      t.equal(await answerOf(41_003), 'hi', 'when another connection has ended')
      t.match(warnings[0], /^no port of this node is left .* default\/web; /)
      t.same(
        path.takeCounts()[0]?.endpoints.map(({ dialErrors }) => dialErrors),
        [0],
      )
    })
  }

  await t.test('US19: nothing is left when the mode closes', async (t) => {
    await mode.close()
    for (const program of ['iptables-save', 'ip6tables-save']) {
      t.notMatch((await runCommand(program, [])).stdout, /KUBE-/)
    }
  })
})

function clusterOf(family: IpFamily): States {
  return states(
    family,
    { detectLocal: { mode: 'ClusterCIDR', cidrs: [ranges.pods[family]] } },
    [0, 1, 2]
      .map((index) => addressOf('node', family, index))
      .concat(family === 'IPv4' ? '127.0.0.1' : '::1'),
  )
}

function serviceOf(
  family: IpFamily,
  spec: Partial<Parameters<typeof service>[0]> & { readonly pods: readonly Place[] },
) {
  const { pods, ...rest } = spec
  return protocols.map((protocol) =>
    service({
      name: `web-${protocol.toLowerCase()}`,
      protocol,
      clusterIp: virtual.cluster[family],
      loadBalancerIps: [virtual.balancer[family]],
      externalIps: [virtual.external[family]],
      endpoints: pods.map((pod) => ({
        ip: addressOf(pod, family),
        port: 8080,
        local: !['pod-4', 'pod-5'].includes(pod),
      })),
      ...rest,
    }),
  )
}
