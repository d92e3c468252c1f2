import t from 'tap'
import { endpointReasons } from '../../../lib/inspect/explain/endpoint-reasons.js'
import { Tracker } from '../../../lib/state/tracker.js'
import { TrackerSink } from '../../../lib/sources/tracker-sink.js'
import { endpoint, rawService, rawSlice, plainNode } from '../../state/objects.js'

const silent = () => undefined

/** The reasons on node-1 in zone a, for a Service and its slices as the API gives them. */
function reasonsOf(spec: object, ...slices: object[]): Record<string, string> {
  const tracker = new Tracker({ ...plainNode, families: ['IPv4', 'IPv6'], nodeName: 'node-1' })
  const listener = {
    changed: silent,
    malformed: (kind: string, _: object, reason: string) => void t.fail(`${kind} ${reason}`),
    warned: silent,
    nodeChanged: silent,
    failed: silent,
  }
  const sink = new TrackerSink(tracker, 'node-1', listener)
  const labels = { 'topology.kubernetes.io/zone': 'a' }
  sink.upsert('Node', { kind: 'Node', metadata: { name: 'node-1', labels }, status: {} })
  const service = rawService({ spec })
  sink.upsert('Service', service)
  for (const slice of slices) sink.upsert('EndpointSlice', slice)
  const [state] = tracker.take().states
  const [first] = state?.services.values() ?? []
  if (!first) throw new Error('no service port')
  const { namespace, name } = first.name
  const seen = {
    family: 'IPv4' as const,
    slices: tracker.endpointSlices(namespace, name),
    nodeName: 'node-1',
    zone: tracker.zone,
  }
  return Object.fromEntries(
    endpointReasons(first, seen).map(({ key, isUsed, reason }) => [
      key,
      `${isUsed ? 'used' : 'out'}: ${reason}`,
    ]),
  )
}

t.test('E11: readiness and termination are reasons to leave an endpoint out', async (t) => {
  const reasons = reasonsOf(
    {},
    rawSlice({
      endpoints: [
        endpoint('10.0.0.1', { node: 'node-1' }),
        endpoint('10.0.0.2', { node: 'node-2', ready: false }),
        endpoint('10.0.0.3', { node: 'node-2', ready: false, serving: true, terminating: true }),
        endpoint('10.0.0.4', { node: 'node-2', ready: false, serving: false, terminating: true }),
      ],
    }),
  )
  t.same(Object.values(reasons), [
    'used: ready, on this node',
    'out: not ready, on node-2',
    'out: terminating, while others are ready, on node-2',
    'out: terminating, and no longer serving, on node-2',
  ])
})

t.test('E14 S15: hints, policy, family and port are reasons to leave one out', async (t) => {
  const hinted = rawSlice({
    endpoints: [
      endpoint('10.0.0.1', { node: 'node-1', zones: ['a'] }),
      endpoint('10.0.0.2', { node: 'node-2', zones: ['b'] }),
    ],
  })
  t.match(reasonsOf({}, hinted)['10.0.0.2:8080'], /hinted for zone b, and this node is in a/)
  const both = rawSlice({
    endpoints: [endpoint('10.0.0.1', { node: 'node-1' }), endpoint('10.0.0.2', { node: 'node-2' })],
  })
  const local = reasonsOf({ internalTrafficPolicy: 'Local' }, both)
  t.match(local['10.0.0.2:8080'], /^out: not local: on node-2, and the traffic policy is Local/)
  const six = rawSlice({
    name: 'six',
    addressType: 'IPv6',
    endpoints: [endpoint('fd00::1', { node: 'node-1' })],
  })
  t.match(reasonsOf({}, both, six)['[fd00::1]:8080'], /^out: is IPv6, and this way is IPv4/)
  const other = rawSlice({
    name: 'other',
    ports: [{ name: 'x', protocol: 'TCP', port: 9 }],
    endpoints: [endpoint('10.0.0.1')],
  })
  t.match(
    reasonsOf({}, other)['10.0.0.1'],
    /^out: its EndpointSlice other has no port of this name/,
  )
})
