import t from 'tap'
import { endpointReasons } from '../../../lib/inspect/explain/endpoint-reasons.js'
import { defaultConfig } from '../../../lib/config/load.js'
import type { ModeName } from '../../../lib/config/config.js'
import { Tracker } from '../../../lib/state/tracker.js'
import { TrackerSink } from '../../../lib/sources/tracker-sink.js'
import { endpoint, rawService, rawSlice, plainNode } from '../../state/objects.js'

const silent = () => undefined

/** The reasons on node-1 in zone a, for a Service and its slices as the API gives them. */
function reasonsOf(spec: object, ...slices: object[]): Record<string, string> {
  return reasonsIn('nftables', rawService({ spec }), ...slices)
}

function reasonsIn(mode: ModeName, service: object, ...slices: object[]): Record<string, string> {
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
    leadsBack: () => false,
    ...{ mode, config: defaultConfig() },
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
  const ending = { node: 'node-2', ready: false, serving: true, terminating: true }
  const alone = rawSlice({ endpoints: [endpoint('10.0.0.2', ending)] })
  t.match(
    reasonsOf({ internalTrafficPolicy: 'Local' }, alone)['10.0.0.2:8080'],
    /^out: not local: on node-2, and the traffic policy is Local/,
    'no other is ready',
  )
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

const three = rawSlice({
  endpoints: ['10.0.0.1', '10.0.0.2', '10.0.0.3'].map((ip) => endpoint(ip, { node: 'node-1' })),
})

/** The reasons for three equal endpoints, of a Service with these annotations. */
function reasonsWith(mode: ModeName, annotations: Record<string, string>, spec: object = {}) {
  const named = Object.entries(annotations).map(
    ([name, value]) => [`kube-proxy-ts/${name}`, value] as const,
  )
  const service = rawService({ spec, annotations: Object.fromEntries(named) })
  return Object.values(reasonsIn(mode, service, three))
}

const used = 'used: ready, on this node'

t.test('an endpoint of weight 0 is not used', async (t) => {
  const annotations = { balance: 'weighted', weight: '10.0.0.1=0,10.0.0.2=3' }
  const out = 'out: weight 0, so it gets no new connections; ready, on this node'
  for (const mode of ['userspace', 'iptables', 'nftables', 'ebpf', 'ipvs'] as const) {
    t.same(reasonsWith(mode, annotations), [used, used, out], mode)
  }
  const sticky = reasonsWith('nftables', annotations, { sessionAffinity: 'ClientIP' })
  t.equal(sticky[2], 'out: weight 0, so it gets no new clients; ready, on this node')
  const none = { ...annotations, weight: '10.0.0.1=0,10.0.0.2=0,10.0.0.3=0' }
  t.same(reasonsWith('nftables', none), [used, used, used], 'all have weight 0')
  const { weight } = annotations
  t.same(reasonsWith('nftables', { weight }), [used, used, used], 'nothing asks for weights')
  t.same(reasonsWith('ipvs', { weight }), [used, used, out], 'IPVS always does')
})

t.test('with balance first the others are in reserve', async (t) => {
  const annotations = { balance: 'first', weight: '10.0.0.2=3,10.0.0.3=0' }
  const reserve = (end: string) =>
    `out: in reserve: it gets new connections only when 10.0.0.2:8080 ${end}; ready, on this node`
  t.same(reasonsWith('userspace', annotations), [used, reserve('fails'), reserve('fails')])
  for (const mode of ['iptables', 'nftables', 'ebpf', 'ipvs'] as const) {
    t.same(reasonsWith(mode, annotations), [used, reserve('leaves'), reserve('leaves')], mode)
  }
  const scheduler = { 'ipvs-scheduler': 'fo', balance: 'weighted', weight: '10.0.0.2=3' }
  t.equal(reasonsWith('ipvs', scheduler)[0], used)
  t.match(reasonsWith('ipvs', scheduler)[1], /^out: in reserve: .* 10\.0\.0\.2:8080 leaves/)
  const inTurn = reasonsWith('ipvs', { ...annotations, 'ipvs-scheduler': 'rr' })
  t.same(inTurn.slice(0, 2), [used, used], 'a scheduler goes before the word')
})

t.test('S18: an endpoint that two policies Local leave out says who still uses it', async (t) => {
  const slice = rawSlice({ endpoints: [endpoint('10.0.0.1', { node: 'node-2' })] })
  const ports = [{ name: 'http', protocol: 'TCP', port: 80, nodePort: 30080 }]
  const policies = { internalTrafficPolicy: 'Local', externalTrafficPolicy: 'Local' }
  t.match(reasonsOf({ type: 'NodePort', ports, ...policies }, slice), {
    '10.0.0.1:8080':
      'used: ready, on node-2, only for clients on this node that ask an external address',
  })
})

t.test('an endpoint that only one policy sends connections to is used', async (t) => {
  const slice = rawSlice({
    endpoints: [endpoint('10.0.0.1', { node: 'node-2' }), endpoint('10.0.0.2', { node: 'node-1' })],
  })
  const spec = { type: 'NodePort', externalTrafficPolicy: 'Local' }
  const annotations = { 'kube-proxy-ts/balance': 'first' }
  const ports = [{ name: 'http', protocol: 'TCP', port: 80, nodePort: 30080 }]
  const service = rawService({ spec: { ...spec, ports }, annotations })
  t.match(reasonsIn('nftables', service, slice), {
    '10.0.0.1:8080': /^used: /,
    '10.0.0.2:8080': /^used: /,
  })
})

t.test('E11: an endpoint that only a policy Local uses names no hints that it lacks', async (t) => {
  const slice = rawSlice({
    endpoints: [
      endpoint('10.0.0.1', { node: 'node-1', ready: false, serving: true, terminating: true }),
      endpoint('10.0.0.2', { node: 'node-2' }),
    ],
  })
  const ports = [{ name: 'http', protocol: 'TCP', port: 80, nodePort: 30080 }]
  t.same(reasonsOf({ type: 'NodePort', ports, externalTrafficPolicy: 'Local' }, slice), {
    '10.0.0.1:8080':
      'used: terminating, but no other endpoint of this node is ready, on this node, only for policy Local',
    '10.0.0.2:8080': 'used: ready, on node-2, not for traffic from outside (policy Local)',
  })
})

t.test('E07: of two records of an endpoint the one that counts is told', async (t) => {
  const slices = [
    rawSlice({ name: 'old', endpoints: [endpoint('10.0.0.1', { node: 'node-1', ready: false })] }),
    rawSlice({ name: 'young', endpoints: [endpoint('10.0.0.1', { node: 'node-1' })] }),
  ]
  t.same(reasonsOf({}, ...slices), { '10.0.0.1:8080': 'used: ready, on this node' })
})
