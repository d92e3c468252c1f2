/** Services on addresses of this machine, for nodes without netfilter. */
import { chmod, mkdtemp } from 'node:fs/promises'
import { join } from 'node:path'
import t from 'tap'
import { AddressPortals } from '../../../lib/modes/userspace/portals/address-portals.js'
import { DeviceAddresses } from '../../../lib/kernel/device-addresses.js'
import { addressMark, deviceName } from '../../../lib/modes/userspace/names.js'
import { dummy, FakeLinks, lo } from '../../support/fake-links.js'
import { runProxy } from '../../support/program.js'
import { addressOf, type Place } from '../../../lib/lab/world/topology.js'
import { explainPacket } from '../../../lib/inspect/explain/explain.js'
import { configWith } from '../../../lib/config/load.js'
import { userspacePlanner, type ServicePlan } from '../../../lib/modes/userspace/plan.js'
import { endpoint, rawService, rawSlice } from '../../state/objects.js'
import { service, states, testSettings } from '../../support/states.js'
import { oneProxyWorld, skip, stopping, write } from '../../e2e/proxy-world.js'
import type { IpFamily } from '../../../lib/state/ip.js'
import type { World } from '../../../lib/lab/world/world.js'
import { patienceMs as timeoutMs, until } from '../../support/until.js'

const inWorld = oneProxyWorld(t, 'addresses')

const settings = { ...testSettings, portals: 'addresses' } as const
const quiet = { debug() {}, info() {}, warn() {}, error() {} }

function planOf(spec: Parameters<typeof service>[0]): ServicePlan {
  const state = states().put(service(spec)).take()
  const [plan] = userspacePlanner(settings)(state).services.values()
  if (!plan) throw new Error('no plan')
  return plan
}

const places = ({ listeners }: ServicePlan) =>
  listeners.map(({ list, spec }) => `${list} ${spec.address} ${spec.port}`)

t.test('every address of a Service gets a listener and no rule', async (t) => {
  const plan = planOf({
    externalIps: ['198.51.100.10'],
    loadBalancerIps: ['203.0.113.10'],
    nodePort: 30_080,
    endpoints: [{ ip: '10.180.0.1', port: 8080 }],
  })
  t.same(places(plan), [
    `cluster ${plan.addresses[0] ?? ''} 80`,
    'cluster 198.51.100.10 80',
    'cluster 203.0.113.10 80',
    'cluster 0.0.0.0 30080',
  ])
  const udp = planOf({ protocol: 'UDP', nodePort: 30_080, endpoints: [{ ip: '10.180.0.1' }] })
  t.same(places(udp).slice(1), ['cluster 127.0.0.1 30080', 'cluster 192.0.2.1 30080'])
  t.same(plan.addresses.slice(1), ['198.51.100.10', '203.0.113.10'])
  t.same([plan.rules, plan.nodePort], [[], undefined])
  t.equal(new Set(plan.listeners.map(({ spec }) => spec.key)).size, 4)
})

t.test('S19: without endpoints there is no listener, and the kernel refuses', async (t) => {
  const plan = planOf({ endpoints: [], nodePort: 30_080, externalIps: ['198.51.100.10'] })
  t.same(places(plan), [])
  t.same(plan.addresses, ['10.96.0.10', '198.51.100.10'], 'as it has the addresses')
})

t.test('S13: an address with source ranges gets no listener', async (t) => {
  const spec = { loadBalancerIps: ['203.0.113.10'], endpoints: [{ ip: '10.180.0.1', port: 80 }] }
  t.equal(places(planOf({ ...spec, sourceRanges: ['192.0.2.0/24'] })).length, 1)
  t.equal(places(planOf(spec)).length, 2)
})

const portalsOn = (links: FakeLinks) =>
  new AddressPortals('IPv4', { openLink: () => Promise.resolve(linkOn(links)), log: quiet })

const linkOn = (links: FakeLinks) =>
  new DeviceAddresses(links, {
    ...{ device: deviceName, mark: addressMark },
    onLoopback: () => undefined,
  })

const leave = () => Promise.resolve()

const wanting = (key: string, ...addresses: string[]) => ({ ...planOf({}), key, addresses })

t.test('addresses are added before listeners and removed after them', async (t) => {
  const links = new FakeLinks()
  const portals = portalsOn(links)
  const a = wanting('a', '10.96.0.10', '192.0.2.1', '127.96.0.1')
  const b = wanting('b', '10.96.0.10', '10.96.0.11')
  t.same(await portals.prepare([a, b], { gone: [], full: true }), [])
  t.same(links.listed(dummy), ['10.96.0.10', '10.96.0.11'])
  await portals.prepare([], { gone: ['b'], full: false })
  t.same(links.listed(dummy), ['10.96.0.10', '10.96.0.11'], 'its listener is still open')
  await portals.change(new Map(), leave)
  t.same(links.listed(dummy), ['10.96.0.10'], 'shared ones stay')
  t.ok(await portals.isIntact())
  links.on.get(dummy)?.clear()
  t.notOk(await portals.isIntact(), 'somebody flushed them')
  await portals.prepare([a], { gone: [], full: true })
  t.same(links.listed(dummy), ['10.96.0.10'])
  links.remove()
  t.notOk(await portals.isIntact(), 'somebody removed the device')
  await portals.prepare([a], { gone: [], full: true })
  t.same(links.listed(dummy), ['10.96.0.10'])
  await links.addAddresses('IPv4', dummy, ['10.96.0.99'])
  await portals.replaceAll(new Map(), leave)
  t.same(links.listed(dummy), ['10.96.0.10'], 'left by an earlier run')
  await portals.remove()
  t.same(links.listed(dummy), ['10.96.0.10'], 'connections go on')
  await portals.drained()
  t.notOk(links.on.has(dummy))
})

t.test('addresses that somebody else puts on the device are taken away', async (t) => {
  const links = new FakeLinks()
  const portals = portalsOn(links)
  const a = wanting('a', '10.96.0.10')
  await portals.prepare([a], { gone: [], full: true })
  for (const other of ['10.96.0.99', '10.96.7.1/24', '10.96.0.10/24']) {
    t.ok(await portals.isIntact())
    await links.addAddresses('IPv4', dummy, [other])
    if (other.startsWith('10.96.0.10/')) links.on.get(dummy)?.delete('10.96.0.10')
    t.notOk(await portals.isIntact(), other)
    await portals.prepare([a], { gone: [], full: true })
    await portals.replaceAll(new Map(), leave)
    t.same(links.listed(dummy), ['10.96.0.10'], other)
  }
  await links.addAddresses('IPv4', dummy, ['10.96.0.10/24'])
  await portals.prepare([], { gone: ['a'], full: false })
  await portals.change(new Map(), leave)
  t.same(links.listed(dummy), [], 'with the Service any form of its address goes')
})

t.test('an address that somebody moves to another device is not missing', async (t) => {
  const links = new FakeLinks()
  const portals = portalsOn(links)
  const a = wanting('a', '10.96.0.10', '10.96.0.11')
  await portals.prepare([a], { gone: [], full: true })
  links.on.get(dummy)?.delete('10.96.0.10')
  await links.addAddresses('IPv4', lo, ['10.96.0.10'])
  t.ok(await portals.isIntact())
  links.on.get(lo)?.delete('10.96.0.10')
  t.notOk(await portals.isIntact(), 'until it goes there, too')
  await portals.prepare([a], { gone: [], full: true })
  t.same(links.listed(dummy), ['10.96.0.11', '10.96.0.10'])
})

t.test('without a dummy device the addresses go on lo, and others there stay', async (t) => {
  const links = new FakeLinks()
  links.canMakeDummy = false
  await links.addAddresses('IPv4', lo, ['127.0.0.1', '10.96.0.11'])
  const first = portalsOn(links)
  const both = wanting('a', '10.96.0.10', '10.96.0.11')
  t.same(await first.prepare([both], { gone: [], full: true }), [])
  await first.replaceAll(new Map(), leave)
  t.same(links.listed(lo), ['127.0.0.1', '10.96.0.11', '10.96.0.10'])

  // The first process was killed. The next one knows which addresses are its own and already there.
  const second = portalsOn(links)
  await second.prepare([wanting('a', '10.96.0.11')], { gone: [], full: true })
  await second.replaceAll(new Map(), leave)
  t.same(links.listed(lo), ['127.0.0.1', '10.96.0.11'])

  await first.prepare([both], { gone: [], full: true })
  links.canMakeDummy = true
  const third = portalsOn(links)
  await third.prepare([both], { gone: [], full: true })
  await third.replaceAll(new Map(), leave)
  t.same(links.listed(lo), ['127.0.0.1', '10.96.0.11'], 'it has a device of its own by now')
  await third.drained()
  t.same([links.listed(lo), links.on.has(dummy)], [['127.0.0.1', '10.96.0.11'], false])
})

t.test('an address that cannot be added is reported for its Service, with advice', async (t) => {
  const plans = [wanting('a', '10.96.0.10'), wanting('b', '203.0.113.1')]
  const failed = await portalsOn(new FakeLinks()).prepare(plans, { gone: [], full: true })
  t.match(failed, [{ key: 'b', event: 'AddressFailed', reason: /203\.0\.113\.1.*NET_ADMIN/ }])
})

t.test('loopback addresses need no device and no netlink', async (t) => {
  const openLink = () => Promise.reject(new Error('nothing to open here'))
  const portals = new AddressPortals('IPv4', { openLink, log: quiet })
  t.same(await portals.prepare([wanting('a', '127.96.0.1')], { gone: [], full: true }), [])
  await portals.replaceAll(new Map(), leave)
  t.ok(await portals.isIntact())
  await portals.drained()
})

t.test('netlink that could not be opened is opened later', async (t) => {
  const links = new FakeLinks()
  let opened = 0
  const openLink = () =>
    opened++ === 0 ? Promise.reject(new Error('EMFILE')) : Promise.resolve(linkOn(links))
  const portals = new AddressPortals('IPv4', { openLink, log: quiet })
  const plans = [wanting('a', '10.96.0.10')]
  t.match(await portals.prepare(plans, { gone: [], full: true }), [{ key: 'a', reason: /EMFILE/ }])
  t.same(await portals.prepare(plans, { gone: [], full: true }), [])
  t.same(links.listed(dummy), ['10.96.0.10'])
})

const protocols = ['TCP', 'UDP'] as const
const families = ['IPv4', 'IPv6'] as const
const ports = protocols.map((protocol) => ({ name: protocol.toLowerCase(), protocol, port: 8080 }))

function objectsOf(clusterIps: readonly string[], spec: object = {}) {
  return [
    rawService({
      spec: {
        clusterIP: clusterIps[0],
        clusterIPs: clusterIps,
        ipFamilies: families.slice(0, clusterIps.length),
        ports: ports.map((port) => ({ ...port, targetPort: 8080 })),
        ...spec,
      },
    }),
    ...families.slice(0, clusterIps.length).map((family) =>
      rawSlice({
        name: `web-${family.toLowerCase()}`,
        addressType: family,
        ports,
        endpoints: [endpoint(addressOf('pod-1', family), { node: 'node-1' })],
      }),
    ),
  ]
}

const ask = async (
  world: World,
  host: string,
  { from = 'node', protocol = 'TCP', port = 8080, timeoutMs = 700 }: Partial<Asked> = {},
) => {
  const [result] = await world.agent(from).flow({ protocol, host, port, timeoutMs })
  return result?.outcome
}

interface Asked {
  readonly from: Place
  readonly protocol: 'TCP' | 'UDP'
  readonly port: number
  readonly timeoutMs: number
}

const virtual = { IPv4: '10.96.0.10', IPv6: 'fd00:10:96::10' }
const byAddresses = ['--proxy-mode', 'userspace', '--userspace-portals', 'addresses']
const apart = ['--takeover-folder', '']

for (const dataPath of ['net', 'splice']) {
  t.test(`Services are served without any rule, data path ${dataPath}`, { skip }, (t) =>
    inWorld(async ({ world, folder }) => {
      const spec = { type: 'NodePort', ports: ports.map((port) => ({ ...port, nodePort: 30_080 })) }
      await write(folder, 'all.yaml', ...objectsOf(Object.values(virtual), spec))
      const args = [...byAddresses, ...apart, '--manifests', folder]
      const proxy = runProxy(world, [...args, '--userspace-datapath', dataPath])
      const addresses = async () => (await world.exec('node', ['ip', 'address'])).stdout
      await stopping(proxy, async () => {
        // The families are programmed one after the other.
        const isProgrammed = (family: IpFamily) =>
          new RegExp(`"family":"${family}".*SyncProxyRules complete`).test(proxy.output())
        await until('all are programmed', () => families.every(isProgrammed))
        await until('the first answer', async () => (await ask(world, virtual.IPv4)) === 'reply')
        for (const family of families) {
          const explained = explainerOf(family)
          for (const from of ['node', 'client-pod', 'outside'] as const) {
            // A UDP client accepts answers only from the address it asked.
            const destinations: [string, number][] = [
              [virtual[family], 8080],
              [virtual[family], 8081],
              ...[0, 1, 2].map((index) => [addressOf('node', family, index), 30_080] as const),
              ...(from === 'node' ? [[loopback[family], 30_080] as const] : []),
            ].map(([host = '', port = 0]) => [String(host), Number(port)])
            for (const protocol of protocols) {
              for (const [host, port] of destinations) {
                const outcome = await ask(world, host, { from, protocol, port, timeoutMs })
                const name = `${protocol} from ${from} to ${host} ${port}`
                t.equal(outcome, port === 8081 ? 'refused' : 'reply', name)
                t.equal(explained(from, protocol, host, port), outcome, `explain: ${name}`)
              }
            }
          }
        }
        t.match(await addresses(), /10\.96\.0\.10\/32/)
        t.notMatch((await world.exec('node', ['iptables-save'])).stdout, /KUBE-PORTALS/)
        const node = world.agent('node')
        const kept = { protocol: 'TCP', host: virtual.IPv4, port: 8080, keepAs: 'long' } as const
        t.equal((await node.flow({ ...kept, timeoutMs }))[0]?.outcome, 'reply')
        const [service] = objectsOf([virtual.IPv4])
        await write(folder, 'all.yaml', service ?? {})
        const isRefused = async () => (await ask(world, virtual.IPv4)) === 'refused'
        await until('S19: a refusal, without endpoints', isRefused)
        t.equal((await node.send('long', timeoutMs)).outcome, 'reply', 'its connection goes on')
        await write(folder, 'all.yaml', ...objectsOf(['10.96.0.11']))
        await until('the new address', async () => (await ask(world, '10.96.0.11')) === 'reply')
        t.not(await ask(world, virtual.IPv4), 'reply')
        t.notMatch(await addresses(), /10\.96\.0\.10\/32/)
        t.equal((await node.send('long', timeoutMs)).outcome, 'closed', 'it ends with the address')
      })
      t.notMatch(await addresses(), /10\.96\.0/, 'nothing is left')
    }),
  )
}

t.test('connections to addresses of Services drain', { skip }, (t) =>
  inWorld(async ({ world, folder }) => {
    await write(folder, 'all.yaml', ...objectsOf([virtual.IPv4]))
    const proxy = runProxy(world, [...byAddresses, ...apart, '--manifests', folder])
    await stopping(proxy, async () => {
      const node = world.agent('node')
      const kept = { protocol: 'TCP', host: virtual.IPv4, port: 8080, keepAs: 'long' } as const
      const isKept = async () => (await node.flow({ ...kept, timeoutMs }))[0]?.outcome === 'reply'
      await until('a connection', isKept)
      const stopped = proxy.stop()
      await until('it stops', () => /"stopping"/.test(proxy.output()))
      await until('it is refused', async () => (await ask(world, virtual.IPv4)) !== 'reply')
      t.equal((await node.send('long', timeoutMs)).outcome, 'reply')
      await node.forget('long')
      await stopped
      t.equal(proxy.exitCode(), 0)
    })
    t.notMatch((await world.exec('node', ['ip', 'address'])).stdout, /10\.96\.0/)
  }),
)

const loopback = { IPv4: '127.0.0.1', IPv6: '::1' }

/** The answer of `explain` for the Service above, in the words for outcomes of flows. */
function explainerOf(family: IpFamily) {
  const cluster = states(
    family,
    {},
    [0, 1, 2].map((index) => addressOf('node', family, index)).concat(loopback[family]),
  )
  const endpoints = [{ ip: addressOf('pod-1', family), port: 8080 }]
  for (const protocol of protocols) {
    const [name, clusterIp] = [`web-${protocol.toLowerCase()}`, virtual[family]]
    cluster.put(service({ name, protocol, clusterIp, port: 8080, nodePort: 30_080, endpoints }))
  }
  const state = cluster.take()
  return (from: Place, protocol: 'TCP' | 'UDP', destination: string, port: number) => {
    const ways = explainPacket(
      'userspace',
      state,
      configWith({ 'userspace.portals': 'addresses' }),
      {
        ...{ family, protocol, destination, port, mark: 0, isDnated: false, isMasqueraded: false },
        source: addressOf(from, family),
        inInterface: from === 'node' ? undefined : 'eth0',
      },
    )
    const isServed = ways.every(
      ({ end, packet }) => end === 'sent' && packet.destination === addressOf('pod-1', family),
    )
    return isServed ? 'reply' : ways.every(({ end }) => end === 'rejected') ? 'refused' : 'unclear'
  }
}

t.test('explain: a node port on the wildcard answers at addresses of Services, too', async (t) => {
  t.equal(explainerOf('IPv4')('node', 'TCP', virtual.IPv4, 30_080), 'reply')
  t.equal(explainerOf('IPv4')('node', 'UDP', virtual.IPv4, 30_080), 'refused')
})

t.test('addresses stay after SIGKILL, and the next run removes them', { skip }, (t) =>
  inWorld(async ({ world, folder }) => {
    const foreign = '198.51.100.77/32'
    await world.exec('node', ['ip', 'address', 'add', foreign, 'dev', 'lo'])
    await write(folder, 'all.yaml', ...objectsOf(Object.values(virtual)))
    const empty = await mkdtemp(join(folder, 'empty-'))
    const addresses = async () => (await world.exec('node', ['ip', 'address'])).stdout
    const areLeft = async () => /10\.96\.0\.10|fd00:10:96::10/.test(await addresses())
    const nexts = {
      'the same way, with other Services': [...byAddresses, ...apart, '--manifests', empty],
      'by rules': ['--proxy-mode', 'userspace', ...apart, '--manifests', empty],
      'another mode': ['--proxy-mode', 'nftables', '--manifests', empty],
      '--cleanup': ['--cleanup'],
    }
    for (const [name, args] of Object.entries(nexts)) {
      const first = runProxy(world, [...byAddresses, ...apart, '--manifests', folder])
      await stopping(first, async () => {
        await until('the first answer', async () => (await ask(world, virtual.IPv4)) === 'reply')
        await first.kill()
      })
      t.ok(await areLeft())
      const next = runProxy(world, args)
      await stopping(next, () => until(name, async () => !(await areLeft())))
      t.match(await addresses(), foreign, `${name}: those of others stay`)
    }
    const rules = async () => (await world.exec('node', ['iptables-save'])).stdout
    const byRules = ['--proxy-mode', 'userspace', ...apart, '--manifests', folder]
    const ruled = runProxy(world, byRules)
    await stopping(ruled, async () => {
      await until('the first answer', async () => (await ask(world, virtual.IPv4)) === 'reply')
      await ruled.kill()
    })
    t.match(await rules(), /KUBE-PORTALS/)
    const unruled = runProxy(world, [...byAddresses, ...apart, '--manifests', folder])
    await stopping(unruled, async () => {
      await until('no rules', async () => !/KUBE-PORTALS/.test(await rules()))
      await until('an answer', async () => (await ask(world, virtual.IPv4)) === 'reply')
    })
  }),
)

t.test('a process without rights serves Services on 127.0.0.0/8', { skip }, (t) =>
  inWorld(async ({ world, folder }) => {
    await chmod(folder, 0o755)
    await write(folder, 'all.yaml', ...objectsOf(['127.96.0.10']))
    const withoutRights = ['setpriv', '--reuid=65534', '--regid=65534', '--clear-groups']
    const args = ['--proxy-mode', 'userspace', '--manifests', folder]
    const proxy = runProxy(world, args, undefined, withoutRights)
    await stopping(proxy, async () => {
      await until('the first answer', async () => (await ask(world, '127.96.0.10')) === 'reply')
      t.equal(await ask(world, '127.96.0.10', { protocol: 'UDP', timeoutMs }), 'reply')
      t.match(
        proxy.output(),
        /iptables cannot be used: Services are served at addresses of this machine/,
      )
      await write(folder, 'all.yaml', ...objectsOf(['10.96.0.10']))
      await until('the reason', () =>
        /NET_ADMIN; without it only Services on 127/.test(proxy.output()),
      )
    })
    const flags = ['--proxy-mode', 'userspace', '--userspace-source-address', 'keep']
    const keeping = runProxy(world, [...flags, '--manifests', folder], undefined, withoutRights)
    await stopping(keeping, async () => {
      await until('a refusal', () =>
        /--userspace-source-address=keep: .*CAP_NET_ADMIN/.test(keeping.output()),
      )
      t.notMatch(keeping.output(), /iptables cannot be used|SyncProxyRules complete/)
    })
  }),
)
