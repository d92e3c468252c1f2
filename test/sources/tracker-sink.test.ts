import t from 'tap'
import { Tracker } from '../../lib/state/tracker.js'
import { TrackerSink } from '../../lib/sources/tracker-sink.js'
import { rawService, rawSlice, plainNode } from '../state/objects.js'

function sinkWithLog() {
  const tracker = new Tracker(plainNode)
  const said: string[] = []
  const sink = new TrackerSink(tracker, 'here', {
    changed: (kind) => said.push(`changed ${kind}`),
    malformed: (kind, { name }, reason) => said.push(`malformed ${kind} ${name}: ${reason}`),
    warned: (kind, { namespace, name }, warning) =>
      said.push(`warned ${kind} ${namespace}/${name}: ${warning}`),
    nodeChanged: (node) => said.push(`node ${node?.name ?? 'gone'}`),
    failed: (message) => said.push(message),
  })
  const services = () => [...tracker.take().states[0]!.services.keys()]
  return { sink, said, services, tracker }
}

t.test('R01: a sync needs all Services, EndpointSlices, ServiceCIDRs and the node', async (t) => {
  const { sink } = sinkWithLog()
  sink.synced('Node')
  sink.synced('EndpointSlice')
  t.notOk(sink.isComplete)
  sink.synced('Service')
  t.notOk(sink.isComplete)
  sink.synced('ServiceCIDR')
  t.ok(sink.isComplete)
})

t.test('L04: the waits for the Node object and for ServiceCIDRs are limited', async (t) => {
  const { sink, said } = sinkWithLog()
  sink.synced('Service')
  sink.synced('EndpointSlice')
  t.ok(sink.stopWaitingFor('ServiceCIDR'))
  t.notOk(sink.isComplete)
  t.ok(sink.stopWaitingFor('Node'))
  t.ok(sink.isComplete)
  t.equal(said.at(-1), 'changed Node', 'so that the first sync runs')
  t.notOk(sink.stopWaitingFor('Node'))
})

t.test('a malformed update is reported, and the last good version stays', async (t) => {
  const { sink, said, services } = sinkWithLog()
  sink.upsert('Service', rawService())
  sink.upsert('Service', rawService({ spec: { ports: [{ port: 'eighty' }] } }))
  t.same(services(), ['default/web:http/TCP'])
  t.match(said, ['changed Service', /^malformed Service web: spec\.ports\[0\]\.port "eighty"/])
  sink.upsert('Service', null)
  t.match(said.at(-1), /^malformed Service : metadata is missing/)
})

t.test('S03: a Service is removed while it has the label of another proxy', async (t) => {
  const { sink, services } = sinkWithLog()
  sink.upsert('Service', rawService())
  t.equal(services().length, 1)
  sink.upsert(
    'Service',
    rawService({ labels: { 'service.kubernetes.io/service-proxy-name': 'other' } }),
  )
  t.equal(services().length, 0)
  sink.upsert('Service', rawService())
  t.equal(services().length, 1)
})

t.test('E01: a slice that lost the label of its Service serves it no longer', async (t) => {
  const { sink, said, tracker } = sinkWithLog()
  const addresses = () =>
    tracker
      .take()
      .states[0]!.services.get('default/web:http/TCP')!
      .clusterEndpoints.map(({ ip }) => ip)
  sink.upsert('Service', rawService())
  sink.upsert('EndpointSlice', rawSlice())
  t.same(addresses(), ['10.244.0.1'])
  const { labels, ...metadata } = rawSlice().metadata
  t.ok(labels)
  sink.upsert('EndpointSlice', { ...rawSlice(), metadata })
  t.same(addresses(), [])
  t.match(said.at(-2), /^warned EndpointSlice default\/web-1: label .*service-name is missing/)
})

t.test('parts that are left out are named, and every kind can be removed', async (t) => {
  const { sink, said, services } = sinkWithLog()
  sink.upsert('Service', rawService({ spec: { externalIPs: ['nonsense'] } }))
  t.match(said[0], /^warned Service default\/web: spec\.externalIPs: "nonsense"/)
  sink.upsert('EndpointSlice', rawSlice())
  sink.remove('EndpointSlice', 'default', 'web-1')
  sink.remove('Service', 'default', 'web')
  t.same(services(), [])
})

t.test('R10: only events of this node matter', async (t) => {
  const { sink, said, tracker } = sinkWithLog()
  sink.upsert('Node', { metadata: { name: 'there' } })
  sink.remove('Node', '', 'there')
  t.notOk(said.some((line) => line.startsWith('node')))
  t.notOk(tracker.knowsNode)
  sink.upsert('Node', { metadata: { name: 'here' } })
  t.ok(tracker.knowsNode)
  sink.remove('Node', '', 'here')
  t.same(
    said.filter((line) => line.startsWith('node')),
    ['node here', 'node gone'],
  )
})

t.test('R02: objects that arrive again change no reference, so nothing is written', async (t) => {
  const { sink, tracker } = sinkWithLog()
  const deliver = () => {
    sink.upsert('Service', rawService())
    sink.upsert('EndpointSlice', rawSlice())
    return tracker.take().states[0]?.services
  }
  const first = deliver()
  t.equal(first?.size, 1)
  t.equal(deliver(), first)
})
