import t from 'tap'
import { mayHaveStaleFlows, staleFlowTest, UdpFrontends } from '../../lib/sync/stale-flows.js'
import type { ServiceFlow } from '../../lib/kernel/conntrack.js'
import type { DesiredState } from '../../lib/state/desired-state.js'
import { service, states, type EndpointSpec } from '../support/states.js'

const flow = (destination: string, answeredBy: string): ServiceFlow => ({
  family: 'IPv4',
  destination,
  answeredBy,
})

const staleFlows = (state: DesiredState, flows: readonly ServiceFlow[], previous?: DesiredState) =>
  flows.filter(staleFlowTest(state, previous))

const dns = (...endpoints: EndpointSpec[]) =>
  service({
    name: 'dns',
    protocol: 'UDP',
    clusterIp: '10.96.0.10',
    port: 53,
    nodePort: 30053,
    externalIps: ['203.0.113.1'],
    loadBalancerIps: ['203.0.113.2'],
    endpoints,
  })

const one = { ip: '10.180.0.1', port: 5353 }
const two = { ip: '10.180.0.2', port: 5353 }
const frontends = ['10.96.0.10:53', '203.0.113.1:53', '203.0.113.2:53', '192.0.2.1:30053']

t.test('CT01, CT02: flows of every address to a removed endpoint are stale', (t) => {
  const state = states().put(dns(one)).take()
  const kept = frontends.map((frontend) => flow(frontend, '10.180.0.1:5353'))
  const gone = frontends.map((frontend) => flow(frontend, '10.180.0.2:5353'))
  t.strictSame(staleFlows(state, [...kept, ...gone]), gone)
  t.end()
})

t.test('CT03: without a serving endpoint every flow is stale', (t) => {
  const unready = { ...one, ready: false, serving: false }
  for (const state of [states().put(dns()).take(), states().put(dns(unready)).take()]) {
    const flows = frontends.map((frontend) => flow(frontend, '10.180.0.1:5353'))
    t.strictSame(staleFlows(state, flows), flows)
  }
  t.end()
})

t.test('CT04: flows to a node port are stale only on addresses of this node', (t) => {
  const state = states().put(dns(one)).take()
  const flows = [flow('198.51.100.7:30053', '198.51.100.7:30053')]
  t.strictSame(staleFlows(state, flows), [])
  const narrow = states('IPv4', { nodePortAddresses: ['10.0.0.0/8'] })
  t.strictSame(
    staleFlows(narrow.put(dns(one)).take(), [flow('192.0.2.1:30053', '192.0.2.1:30053')]),
    [],
    'and only where node ports are served',
  )
  t.end()
})

t.test('CT05: flows of TCP and SCTP Services are never stale', (t) => {
  const tcp = service({ protocol: 'TCP', port: 53, clusterIp: '10.96.0.10', endpoints: [] })
  const state = states().put(tcp).take()
  t.strictSame(staleFlows(state, [flow('10.96.0.10:53', '10.180.0.1:5353')]), [])
  t.end()
})

t.test('CT06: an endpoint that terminates but still serves keeps its flows', (t) => {
  const draining = { ...one, ready: false, serving: true, terminating: true }
  const state = states().put(dns(draining, two)).take()
  t.strictSame(staleFlows(state, [flow('10.96.0.10:53', '10.180.0.1:5353')]), [])
  t.end()
})

t.test('CT07, CT08: flows without NAT, and flows to an old target port, are stale', (t) => {
  const state = states()
    .put(dns({ ...one, port: 5354 }))
    .take()
  const flows = [flow('10.96.0.10:53', '10.96.0.10:53'), flow('192.0.2.1:30053', '10.180.0.1:5353')]
  t.strictSame(staleFlows(state, flows), flows)
  t.strictSame(staleFlows(state, [flow('192.0.2.1:30053', '10.180.0.1:5354')]), [])
  t.end()
})

t.test('flows to a removed Service and to a removed address are stale', (t) => {
  const cluster = states().put(dns(one))
  const before = cluster.take()
  const flows = frontends.map((frontend) => flow(frontend, '10.180.0.1:5353'))
  const changed = cluster.put({ ...dns(one), externalIps: [], nodePort: 0 }).take()
  t.strictSame(staleFlows(changed, flows, before), [flows[1], flows[3]])
  const removed = cluster.remove(dns()).take()
  t.strictSame(staleFlows(removed, flows, changed), [flows[0], flows[2]])
  t.strictSame(staleFlows(removed, flows), [], 'without history nobody knows whose they are')
  t.end()
})

t.test('flows to an address that no longer serves node ports are stale', (t) => {
  const before = states().put(dns(one)).take()
  const nodePorts = { ...before.node.nodePorts, addresses: ['192.0.2.77'] }
  const moved = { ...before, node: { ...before.node, nodePorts } }
  const flows = frontends.map((frontend) => flow(frontend, '10.180.0.1:5353'))
  t.strictSame(staleFlows(moved, flows, before), [flows[3]])
  t.strictSame(staleFlows(moved, flows, moved), [], 'later they are of other machines')
  t.end()
})

t.test('an address and port of two Services keeps the flows of both', (t) => {
  const other = { ...dns(two), name: 'other', clusterIp: '10.96.0.11', nodePort: 0 }
  const state = states().put(dns(one), other).take()
  const flows = [
    flow('203.0.113.1:53', '10.180.0.1:5353'),
    flow('203.0.113.1:53', '10.180.0.2:5353'),
  ]
  t.strictSame(staleFlows(state, flows), [])
  t.end()
})

t.test('places of Services that are followed are those of the newest state', (t) => {
  const followed = new UdpFrontends()
  const same = (state: DesiredState, text: string) => {
    const [now, anew] = [followed, new UdpFrontends()].map((each) =>
      [...each.follow(state)].map(([place, owners]) => [
        place,
        owners.map(({ key }) => key).sort(),
      ]),
    )
    t.same(new Map(now as []), new Map(anew as []), text)
  }
  const cluster = states()
  const other = { ...dns(two), name: 'other', clusterIp: '10.96.0.11', nodePort: 0 }
  same(cluster.put(dns(one), service({ name: 'web' })).take(), 'a first one')
  same(cluster.put(other).take(), 'two at one place')
  same(cluster.put({ ...other, externalIps: [] }).take(), 'one leaves')
  same(cluster.put({ ...dns(one, two), nodePort: 0 }).take(), 'a node port goes')
  same(cluster.put({ ...dns(one), protocol: 'TCP' }).take(), 'a protocol changes')
  same(cluster.put(dns(one)).remove(other).take(), 'one is removed')
  const elsewhere = states('IPv4', { nodePortAddresses: ['10.0.0.0/8'] })
  same(elsewhere.put(dns(one)).take(), 'the addresses of the node change')
  t.end()
})

t.test(
  'E20: only a change of a UDP Service or of addresses of the node asks for a cleanup',
  (t) => {
    const cluster = states().put(dns(one))
    const first = cluster.take()
    t.equal(mayHaveStaleFlows(first, undefined), true)
    const second = cluster.put(service({ name: 'web' })).take()
    t.equal(mayHaveStaleFlows(second, first), false)
    const third = cluster.put(dns(two)).take()
    t.equal(mayHaveStaleFlows(third, second), true)
    const nodePorts = { ...third.node.nodePorts, addresses: ['192.0.2.77'] }
    t.equal(mayHaveStaleFlows({ ...third, node: { ...third.node, nodePorts } }, third), true)
    t.end()
  },
)
