/** Services on addresses of this machine, for nodes without netfilter. */
import { chmod } from 'node:fs/promises'
import t from 'tap'
import { AddressPortals, type AddressLinks } from '../../../lib/modes/userspace/address-portals.js'
import { KernelError } from '../../../lib/errors.js'
import { runProxy } from '../../../lib/playground/proxy-process.js'
import { addressOf } from '../../../lib/world/topology.js'
import { UserspacePlanner, type ServicePlan } from '../../../lib/modes/userspace/plan.js'
import { endpoint, rawService, rawSlice } from '../../state/objects.js'
import { service, states, testSettings } from '../../support/states.js'
import { skip, stopping, until, withStage, write } from '../../e2e/stage.js'
import type { World } from '../../../lib/world/world.js'

const settings = {
  ...testSettings,
  userspace: { ...testSettings.userspace, portals: 'addresses' as const },
}
const quiet = { debug() {}, info() {}, warn() {}, error() {} }

function planOf(spec: Parameters<typeof service>[0]): ServicePlan {
  const state = states().put(service(spec)).take()
  const [plan] = new UserspacePlanner(settings).plan(state).services.values()
  if (!plan) throw new Error('no plan')
  return plan
}

const places = ({ listeners }: ServicePlan) =>
  listeners.map(({ list, spec }) => `${list} ${spec.address} ${spec.port}`)

t.test('every address of a Service gets a listener, and no rule', async (t) => {
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
  t.same(plan.addresses.slice(1), ['198.51.100.10', '203.0.113.10'])
  t.same([plan.rules, plan.nodePort], [[], undefined])
  t.equal(new Set(plan.listeners.map(({ spec }) => spec.key)).size, 4)
})

t.test('S19: without endpoints nobody listens, so the kernel refuses', async (t) => {
  t.same(places(planOf({ endpoints: [], nodePort: 30_080 })), [])
})

t.test('S13: a range without this node shuts it out', async (t) => {
  const spec = { loadBalancerIps: ['203.0.113.10'], endpoints: [{ ip: '10.180.0.1', port: 80 }] }
  t.equal(places(planOf({ ...spec, sourceRanges: ['198.51.100.0/24'] })).length, 1)
  t.equal(places(planOf({ ...spec, sourceRanges: ['0.0.0.0/0'] })).length, 2)
})

/** Devices and addresses in memory. */
class FakeLinks implements AddressLinks {
  readonly onDevice = new Set<string>()
  hasDummy = true
  removed: string[] = []
  find = (name: string) => (name === 'lo' ? 1 : undefined)
  ensureDummy = () => {
    if (this.hasDummy) return 7
    throw new KernelError('unsupported', 'create dummy device: unknown device type')
  }
  remove = (name: string) => this.removed.push(name) > 0
  addresses = (_family: string, device: { on: number } | { except: number }) =>
    Promise.resolve('on' in device ? [...this.onDevice] : ['192.0.2.1'])
  addAddresses = (_family: string, _index: number, ips: readonly string[]) => {
    const denied = (ip: string) => ({ ip, error: new KernelError('denied', `add ${ip}: EPERM`) })
    for (const ip of ips) if (!ip.startsWith('203.')) this.onDevice.add(ip)
    return Promise.resolve(ips.filter((ip) => ip.startsWith('203.')).map(denied))
  }
  deleteAddresses = (_family: string, _index: number, ips: readonly string[]) => {
    for (const ip of ips) this.onDevice.delete(ip)
    return Promise.resolve([])
  }
}

const wanting = (key: string, ...addresses: string[]) => ({ ...planOf({}), key, addresses })

t.test('addresses come before listeners, go after them, and the node keeps its own', async (t) => {
  const links = new FakeLinks()
  const portals = new AddressPortals('IPv4', {
    openLinks: () => Promise.resolve(links),
    log: quiet,
  })
  const a = wanting('a', '10.96.0.10', '192.0.2.1', '127.96.0.1')
  const b = wanting('b', '10.96.0.10', '10.96.0.11')
  t.same(await portals.prepare([a, b], { gone: [], full: true }), [])
  t.same([...links.onDevice], ['10.96.0.10', '10.96.0.11'])
  await portals.prepare([], { gone: ['b'], full: false })
  t.same([...links.onDevice], ['10.96.0.10', '10.96.0.11'], 'its listener is still open')
  await portals.change()
  t.same([...links.onDevice], ['10.96.0.10'], 'shared ones stay')
  t.ok(await portals.isIntact())
  links.onDevice.clear()
  t.notOk(await portals.isIntact(), 'somebody flushed them')
  await portals.prepare([a], { gone: [], full: true })
  t.same([...links.onDevice], ['10.96.0.10'])
  links.onDevice.add('10.96.0.99')
  await portals.replaceAll()
  t.same([...links.onDevice], ['10.96.0.10'], 'left by an earlier run')
  await portals.remove()
  t.same([[...links.onDevice], links.removed], [[], ['kube-portals0']])
})

t.test('without a dummy device they go on lo, and others there are left alone', async (t) => {
  const links = new FakeLinks()
  links.hasDummy = false
  links.onDevice.add('127.0.0.1')
  const portals = new AddressPortals('IPv4', {
    openLinks: () => Promise.resolve(links),
    log: quiet,
  })
  await portals.prepare([wanting('a', '10.96.0.10')], { gone: [], full: true })
  await portals.replaceAll()
  t.same([...links.onDevice], ['127.0.0.1', '10.96.0.10'])
  await portals.remove()
  t.same([[...links.onDevice], links.removed], [['127.0.0.1'], []])
})

t.test('what may not be added is reported for its Service, with what to do', async (t) => {
  const links = new FakeLinks()
  const portals = new AddressPortals('IPv4', {
    openLinks: () => Promise.resolve(links),
    log: quiet,
  })
  const plans = [wanting('a', '10.96.0.10'), wanting('b', '203.0.113.1')]
  const failed = await portals.prepare(plans, { gone: [], full: true })
  t.match(failed, [{ key: 'b', event: 'AddressFailed', reason: /203\.0\.113\.1.*NET_ADMIN/ }])
})

t.test('loopback addresses need neither device nor netlink', async (t) => {
  const openLinks = () => Promise.reject(new Error('nothing to open here'))
  const portals = new AddressPortals('IPv4', { openLinks, log: quiet })
  t.same(await portals.prepare([wanting('a', '127.96.0.1')], { gone: [], full: true }), [])
  await portals.replaceAll()
  t.ok(await portals.isIntact())
  await portals.remove()
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

const ask = async (world: World, host: string, protocol: 'TCP' | 'UDP' = 'TCP', port = 8080) => {
  const [result] = await world.agent('node').flow({ protocol, host, port, timeoutMs: 700 })
  return result?.outcome
}

t.test('programs of the node reach Services without a single rule', { skip }, (t) =>
  withStage('addresses', async ({ world, folder }) => {
    const virtual = ['10.96.0.10', 'fd00:10:96::10']
    const spec = { type: 'NodePort', ports: ports.map((port) => ({ ...port, nodePort: 30_080 })) }
    await write(folder, 'all.yaml', ...objectsOf(virtual, spec))
    const args = ['--proxy-mode', 'userspace', '--manifests', folder, '--takeover-folder', '']
    const proxy = runProxy(world, [...args, '--userspace-portals', 'addresses'])
    const addresses = async () => (await world.exec('node', ['ip', 'address'])).stdout
    await stopping(proxy, async () => {
      await until('the first answer', async () => (await ask(world, '10.96.0.10')) === 'reply')
      for (const protocol of protocols) {
        for (const [index, host] of virtual.entries()) {
          const family = families[index] ?? 'IPv4'
          t.equal(await ask(world, host, protocol), 'reply', `${protocol} ${host}`)
          for (const own of [addressOf('node', family), addressOf('node', family, 1)]) {
            t.equal(await ask(world, own, protocol, 30_080), 'reply', `${protocol} ${own}`)
          }
        }
      }
      t.match(await addresses(), /10\.96\.0\.10\/32/)
      t.notMatch((await world.exec('node', ['iptables-save'])).stdout, /KUBE-PORTALS/)
      await write(folder, 'all.yaml', ...objectsOf(['10.96.0.11']))
      await until('the new address', async () => (await ask(world, '10.96.0.11')) === 'reply')
      t.not(await ask(world, '10.96.0.10'), 'reply')
      t.notMatch(await addresses(), /10\.96\.0\.10\/32/)
    })
    t.notMatch(await addresses(), /10\.96\.0/, 'nothing is left')
  }),
)

t.test('an ordinary user serves Services on 127.0.0.0/8', { skip }, (t) =>
  withStage('rootless', async ({ world, folder }) => {
    await chmod(folder, 0o755)
    await write(folder, 'all.yaml', ...objectsOf(['127.96.0.10']))
    const proxy = runProxy(world, ['--proxy-mode', 'userspace', '--manifests', folder], undefined, [
      'setpriv',
      '--reuid=65534',
      '--regid=65534',
      '--clear-groups',
    ])
    await stopping(proxy, async () => {
      await until('the first answer', async () => (await ask(world, '127.96.0.10')) === 'reply')
      t.equal(await ask(world, '127.96.0.10', 'UDP'), 'reply')
      t.match(proxy.output(), /iptables cannot be used: only traffic that starts on this machine/)
      await write(folder, 'all.yaml', ...objectsOf(['10.96.0.10']))
      await until('the reason', () => /NET_ADMIN, without which only/.test(proxy.output()))
    })
  }),
)
