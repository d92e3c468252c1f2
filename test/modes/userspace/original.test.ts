/** Each property of the original design that is kept, and each that is changed. */
import { once } from 'node:events'
import { connect } from 'node:net'
import t from 'tap'
import { DescriptorBudget } from '../../../lib/modes/userspace/datapath/descriptors.js'
import { AffinityTable } from '../../../lib/modes/userspace/datapath/affinity.js'
import { definition } from '../../../lib/modes/userspace/index.js'
import { ReservedNodePorts } from '../../../lib/modes/userspace/portals/reserved-node-ports.js'
import { userspacePlanner } from '../../../lib/modes/userspace/plan.js'
import { PortAllocator } from '../../../lib/modes/userspace/listeners/port-allocator.js'
import { service, state, states, testConfig, testSettings } from '../../support/states.js'
import { walkOf } from '../../support/walks.js'

function rulesOf(...specs: Parameters<typeof state>[0][number][]): readonly string[] {
  const planner = definition.planner(testConfig)
  return planner.render(planner.plan(state(specs))).split('\n')
}
const reachable = service({
  externalIps: ['198.51.100.10'],
  loadBalancerIps: ['203.0.113.10'],
  nodePort: 30_080,
  endpoints: 1,
})
const served = '10.180.0.1:8080 masqueraded'

t.test('US02, US03: an external IP of the node is served before a node port', async (t) => {
  const external = { name: 'z', clusterIp: '10.96.0.11', port: 30_080, externalIps: ['192.0.2.1'] }
  const go = walkOf(
    'userspace',
    state([reachable, service({ ...external, endpoints: ['10.180.0.9'] })]),
  )
  for (const from of ['pod', 'node', 'outside'])
    t.equal(go(from, '192.0.2.1:30080'), '10.180.0.9:8080 masqueraded', from)
})

t.test(
  'US09, US10: external and load-balancer addresses are served as ClusterIPs are',
  async (t) => {
    const go = walkOf('userspace', state([reachable]), { 'userspace.sourceAddress': 'hide' })
    for (const from of ['pod', 'node', 'outside'])
      for (const ip of ['10.96.0.10', '198.51.100.10', '203.0.113.10'])
        t.equal(go(from, `${ip}:80`), served, `${from} to ${ip}`)
  },
)

t.test(
  'US11: a node port serves pods, the node and clients outside, and INPUT accepts it',
  async (t) => {
    const go = walkOf('userspace', state([reachable]))
    for (const from of ['pod', 'node', 'outside'])
      t.equal(go(from, '192.0.2.1:30080'), served, from)
    t.equal(go('node', '127.0.0.1:30080'), served)
    const accepts = rulesOf(reachable).filter((line) => line.startsWith('-A KUBE-PORTALS-DIRECT'))
    t.match(accepts, [/--dport PROXY-PORT -j KUBE-PORTALS-LISTENER/])
  },
)

t.test('US31, US71: the kernel picks proxy ports, for each IP family', async (t) => {
  for (const family of ['IPv4', 'IPv6'] as const) {
    const ip = family === 'IPv4' ? '10.96.0.10' : 'fd00:10:96::10'
    const plan = userspacePlanner(testSettings)(
      states(family)
        .put(service({ clusterIp: ip }))
        .take(),
    )
    const [planned] = plan.services.values()
    const wildcard = family === 'IPv4' ? '0.0.0.0' : '::'
    t.match(planned?.listeners, [{ spec: { port: 0, address: wildcard } }])
  }
})

t.test('US33: releasing a port that was not taken changes nothing', async (t) => {
  const ports = new PortAllocator({ from: 20, to: 20 })
  ports.release(99)
  t.equal(ports.take(new Set()), 20)
  t.equal(ports.take(new Set()), undefined)
  ports.release(20)
  t.equal(ports.take(new Set()), 20)
})

t.test('US70: a changed Service keeps its listener', async (t) => {
  const cluster = states()
  const planner = userspacePlanner(testSettings)
  const keys = () =>
    [...planner(cluster.take()).services.values()].flatMap(({ listeners }) =>
      listeners.map(({ spec }) => spec.key),
    )
  cluster.put(service())
  const before = keys()
  cluster.put(service({ nodePort: 30_080, externalIps: ['198.51.100.10'], affinitySeconds: 10 }))
  t.same(keys(), before)
})

t.test(
  'US66, US67: a new record removes expired ones, and the port of a client does not matter',
  async (t) => {
    const table = new AffinityTable(1000)
    table.remember('192.0.2.1', 'a', 0)
    table.remember('192.0.2.2', 'b', 500)
    t.equal(table.size, 2)
    table.remember('192.0.2.3', 'c', 1200)
    t.equal(table.size, 2, 'no timer, and yet the oldest is gone')
    t.equal(table.find('192.0.2.1', 1200), undefined)
  },
)

t.test('US13, US14, US15: one Service holds a node port; others are refused', async (t) => {
  const nodePorts = new ReservedNodePorts(new DescriptorBudget(DescriptorBudget.allocate(100)))
  t.teardown(() => nodePorts.close())
  const nodePort = {
    family: 'IPv4',
    protocol: 'TCP',
    port: 30_080 + (process.pid % 2000),
    addresses: ['127.0.0.1'],
  } as const
  t.equal(await nodePorts.reserve('a', nodePort), undefined)
  t.equal(await nodePorts.reserve('a', nodePort), undefined, 'twice by the same')
  t.match(await nodePorts.reserve('b', nodePort), /is held by a/)
  nodePorts.release('b')
  t.match(await nodePorts.reserve('b', nodePort), /is held by a/, 'not theirs to give up')
  nodePorts.release('a', nodePort)
  t.match(await nodePorts.reserve('b', nodePort), /is held by a/, 'the owner wants the same again')
  const stray = connect({ host: '127.0.0.1', port: nodePort.port })
  const [error] = (await once(stray, 'error')) as [NodeJS.ErrnoException]
  t.equal(error.code, 'ECONNRESET', 'not left hanging')
  nodePorts.release('a')
  t.equal(await nodePorts.reserve('b', nodePort), undefined)
})
