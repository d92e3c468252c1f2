import t from 'tap'
import fc from 'fast-check'
import { parseEndpointSlice } from '../../lib/state/parse-endpoint-slice.js'
import { parseNode } from '../../lib/state/parse-node.js'
import { parseService } from '../../lib/state/parse-service.js'
import { Tracker, type TrackerSettings } from '../../lib/state/tracker.js'
import type { DesiredService, DesiredState } from '../../lib/state/desired-state.js'
import type { IpFamily } from '../../lib/state/ip.js'
import { endpoint, rawService, rawSlice, type RawService, type RawSlice } from './objects.js'

const settings: TrackerSettings = {
  families: ['IPv4', 'IPv6'],
  nodeName: 'here',
  bindAddress: '0.0.0.0',
  nodePortAddresses: [],
  detectLocal: { mode: 'ClusterCIDR', cidrs: ['10.244.0.0/16'] },
  allowsExternalIps: true,
}

/** A tracker that gets raw objects. A test asks it for one service port at a time. */
class Feed {
  readonly tracker: Tracker

  constructor(overrides: Partial<TrackerSettings> = {}) {
    this.tracker = new Tracker({ ...settings, ...overrides })
  }

  service(raw: RawService = {}): this {
    const parsed = parseService(rawService(raw))
    if (parsed.outcome !== 'accepted') throw new Error(parsed.reason)
    this.tracker.upsertService(parsed.value)
    return this
  }

  slice(raw: RawSlice = {}): this {
    const parsed = parseEndpointSlice(rawSlice(raw))
    if (parsed.outcome !== 'accepted') throw new Error(parsed.reason)
    this.tracker.upsertEndpointSlice(parsed.value)
    return this
  }

  node(zone: string | undefined, spec: object = {}, status: object = {}): this {
    const labels = zone === undefined ? {} : { 'topology.kubernetes.io/zone': zone }
    const parsed = parseNode({ metadata: { name: 'here', labels }, spec, status })
    if (parsed.outcome !== 'accepted') throw new Error(parsed.outcome)
    this.tracker.setNode(parsed.value)
    return this
  }

  state(family: IpFamily = 'IPv4'): DesiredState {
    return this.tracker.take().states.find((state) => state.family === family)!
  }

  get(key = 'default/web:http/TCP', family: IpFamily = 'IPv4'): DesiredService {
    const service = this.state(family).services.get(key)
    if (!service) throw new Error(`no ${key}`)
    return service
  }
}

const keysOf = (endpoints: readonly { key: string }[]) => endpoints.map(({ key }) => key)

t.test('S01, S25: a service port is namespace, name, port name and protocol', async (t) => {
  const feed = new Feed().service({
    spec: {
      ports: [
        { name: 'dns', protocol: 'UDP', port: 53 },
        { name: 'dns', protocol: 'TCP', port: 53 },
      ],
    },
  })
  const services = [...feed.state().services.values()]
  t.same(services.map(({ key }) => key).sort(), ['default/web:dns/TCP', 'default/web:dns/UDP'])
  t.equal(services[0]?.portName, 'default/web:dns')
  t.equal(
    new Feed().service({ spec: { ports: [{ port: 80 }] } }).get('default/web/TCP').portName,
    'default/web',
  )
})

t.test('S07, S08: each family sees its own addresses and endpoints only', async (t) => {
  const feed = new Feed()
    .service({
      spec: {
        clusterIPs: ['10.96.0.10', 'fd00:96::10'],
        externalIPs: ['192.0.2.9', '2001:db8::9'],
      },
    })
    .slice()
    .slice({ name: 'web-6', addressType: 'IPv6', endpoints: [endpoint('fd00:244::1')] })
  const v4 = feed.get()
  const v6 = feed.get(undefined, 'IPv6')
  t.same(
    [v4.clusterIp, v4.externalIps, keysOf(v4.clusterEndpoints)],
    ['10.96.0.10', ['192.0.2.9'], ['10.244.0.1:8080']],
  )
  t.same(
    [v6.clusterIp, v6.externalIps, keysOf(v6.clusterEndpoints)],
    ['fd00:96::10', ['2001:db8::9'], ['[fd00:244::1]:8080']],
  )
  t.equal(new Feed().service().state('IPv6').services.size, 0)
})

t.test('S10: load-balancer addresses, too, go to the state of their family only', async (t) => {
  const feed = new Feed()
    .service({
      spec: { type: 'LoadBalancer', clusterIPs: ['10.96.0.10', 'fd00::10'] },
      status: { loadBalancer: { ingress: [{ ip: '192.0.2.1' }, { ip: '2001:db8::1' }] } },
    })
    .slice()
  t.same(feed.get().loadBalancerIps, ['192.0.2.1'])
  t.same(feed.get(undefined, 'IPv6').loadBalancerIps, ['2001:db8::1'])
})

t.test('S12: a range of all addresses empties the list of its own family only', async (t) => {
  const clusterIPs = ['10.96.0.10', 'fd00:96::10']
  const rangesOf = (...loadBalancerSourceRanges: readonly string[]) => {
    const spec = { type: 'LoadBalancer', clusterIPs, loadBalancerSourceRanges }
    const feed = new Feed().service({ spec })
    const families = ['IPv4', 'IPv6'] as const
    return families.map((family) =>
      feed.get(undefined, family).sourceRanges.map(({ text }) => text),
    )
  }
  t.same(rangesOf('10.0.0.0/8', '::/0'), [['10.0.0.0/8'], []])
  t.same(rangesOf('0.0.0.0/0', '10.0.0.0/8', '2001:db8::/32'), [[], ['2001:db8::/32']])
})

t.test('E07: a slice port serves the Service port of its name and its protocol', async (t) => {
  const feed = new Feed()
    .service({
      spec: {
        ports: [
          { name: 'dns', protocol: 'TCP', port: 53 },
          { name: 'dns', protocol: 'UDP', port: 53 },
          { name: 'web', protocol: 'TCP', port: 80 },
        ],
      },
    })
    .slice({ ports: [{ name: 'dns', protocol: 'UDP', port: 5353 }] })
  const keysOf = (key: string) => feed.get(key).clusterEndpoints.map((one) => one.key)
  t.same(keysOf('default/web:dns/UDP'), ['10.244.0.1:5353'])
  t.same(keysOf('default/web:dns/TCP'), [])
  t.same(keysOf('default/web:web/TCP'), [])
})

t.test('S09, S14: external IPs are ignored if the gate is off', async (t) => {
  const spec = { externalIPs: ['192.0.2.9'] }
  t.ok(new Feed().service({ spec }).get().externallyAccessible)
  const closed = new Feed({ allowsExternalIps: false }).service({ spec }).get()
  t.same([closed.externalIps, closed.externallyAccessible], [[], false])
})

const local = { node: 'here' }

t.test('S15-S17, S19: the verdict of each policy depends on where the endpoints are', async (t) => {
  const at = (spec: object, endpoints: object[]) => {
    const { internal, external, clusterEndpoints, localEndpoints } = new Feed()
      .service({ spec })
      .slice({ endpoints })
      .get()
    return [internal, external, clusterEndpoints.length, localEndpoints.length]
  }
  const far = [endpoint('10.244.1.1'), endpoint('10.244.1.2')]
  const near = [...far, endpoint('10.244.0.1', local)]
  const nodePort = { type: 'NodePort', ports: [{ name: 'http', port: 80, nodePort: 30080 }] }
  const iLocal = { internalTrafficPolicy: 'Local' }
  const eLocal = { externalTrafficPolicy: 'Local' }
  t.same(at({}, far), ['cluster', 'cluster', 2, 0])
  t.same(at({}, []), ['reject', 'reject', 0, 0])
  t.same(
    at(iLocal, far),
    ['drop', 'drop', 0, 0],
    'nothing is reachable from outside, so no cluster list',
  )
  t.same(at(iLocal, near), ['local', 'drop', 0, 1])
  t.same(at({ ...nodePort, ...eLocal }, far), ['cluster', 'drop', 2, 0])
  t.same(at({ ...nodePort, ...eLocal }, near), ['cluster', 'local', 3, 1])
  t.same(at({ ...nodePort, ...eLocal }, []), ['reject', 'reject', 0, 0])
  t.same(at({ ...nodePort, ...iLocal, ...eLocal }, near), ['local', 'local', 3, 1])
  t.same(
    at(eLocal, near),
    ['cluster', 'drop', 3, 0],
    'not reachable from outside: Local asks for nothing',
  )
})

t.test(
  'E07, E08, S26: slices are merged in a stable order, and the more useful record of an endpoint wins',
  async (t) => {
    const dying = { ready: false, serving: true, terminating: true }
    const unready = { ready: false, serving: false, terminating: false }
    for (const names of [
      ['a', 'b'],
      ['b', 'a'],
    ]) {
      const feed = new Feed().service()
      for (const name of names) {
        feed.slice({
          name,
          endpoints:
            name === 'a'
              ? [
                  endpoint('10.244.0.3', unready),
                  endpoint('10.244.0.9'),
                  endpoint('10.244.0.2', dying),
                ]
              : [endpoint('10.244.0.2'), endpoint('10.244.0.3')],
        })
      }
      const { clusterEndpoints } = feed.get()
      t.same(keysOf(clusterEndpoints), ['10.244.0.2:8080', '10.244.0.3:8080', '10.244.0.9:8080'])
      t.notOk(clusterEndpoints[0]?.terminating)
    }
    const named = new Feed()
      .service()
      .slice({ name: 'a' })
      .slice({ name: 'b', ports: [{ name: 'http', port: 9090 }] })
      .get()
    t.same(keysOf(named.clusterEndpoints), ['10.244.0.1:8080', '10.244.0.1:9090'])
  },
)

t.test('E08: of equal records of an endpoint one counts, whichever slice came first', async (t) => {
  const inA = { zones: ['a'] }
  const inB = { zones: ['b'] }
  const slices = [
    { name: '1', endpoints: [endpoint('10.244.0.1', inA), endpoint('10.244.0.2', inA)] },
    { name: '2', endpoints: [endpoint('10.244.0.1', { ...inA, ...local })] },
    { name: '3', endpoints: [endpoint('10.244.0.2', inB), endpoint('10.244.0.3', inB)] },
  ]
  for (const inOrder of [slices, [...slices].reverse()]) {
    const feed = new Feed().node('a').service({ spec: { internalTrafficPolicy: 'Local' } })
    for (const slice of inOrder) feed.slice(slice)
    t.same(keysOf(feed.get().localEndpoints), ['10.244.0.1:8080'], 'one on this node')
    const { clusterEndpoints } = feed.service().get()
    t.same(keysOf(clusterEndpoints), ['10.244.0.1:8080', '10.244.0.2:8080'], 'or the first by name')
  }
})

t.test(
  'E11-E13: terminating endpoints serve only while no endpoint of the same list is ready',
  async (t) => {
    const dying = { ready: false, serving: true, terminating: true }
    const gone = { ready: false, serving: false, terminating: true }
    const eLocal = {
      type: 'NodePort',
      externalTrafficPolicy: 'Local',
      ports: [{ name: 'http', port: 80, nodePort: 30080 }],
    }
    const mixed = new Feed()
      .service({ spec: eLocal })
      .slice({
        endpoints: [
          endpoint('10.244.1.1'),
          endpoint('10.244.0.1', { ...dying, ...local }),
          endpoint('10.244.0.2', { ...gone, ...local }),
        ],
      })
      .get()
    t.same(keysOf(mixed.clusterEndpoints), ['10.244.1.1:8080'])
    t.same(keysOf(mixed.localEndpoints), ['10.244.0.1:8080'])
    t.same(keysOf(mixed.reachableEndpoints), ['10.244.0.1:8080', '10.244.1.1:8080'], 'E13')
    t.same(mixed.readyLocalAddresses, [], 'E19: a terminating one does not count')
    const last = new Feed()
      .service()
      .slice({ endpoints: [endpoint('10.244.1.1', dying), endpoint('10.244.1.2', gone)] })
      .get()
    t.same(
      [keysOf(last.clusterEndpoints), last.hasAnyEndpoints, last.internal],
      [['10.244.1.1:8080'], true, 'cluster'],
    )
    const none = new Feed()
      .service()
      .slice({ endpoints: [endpoint('10.244.1.2', gone)] })
      .get()
    t.same([none.hasAnyEndpoints, none.internal, none.servingEndpoints], [false, 'reject', []])
  },
)

t.test('E14-E17: hints apply if all ready endpoints have some and one is for us', async (t) => {
  const pick = (endpoints: object[], zone: string = 'a', spec = {}) =>
    new Feed()
      .node(zone === '' ? undefined : zone)
      .service({ spec })
      .slice({ endpoints })
      .get()
  const ips = (service: DesiredService) => service.clusterEndpoints.map(({ ip }) => ip)
  const inA = endpoint('10.244.0.1', { zones: ['a'] })
  const inB = endpoint('10.244.0.2', { zones: ['b'] })
  t.same(ips(pick([inA, inB])), ['10.244.0.1'])
  t.same(ips(pick([inA, inB], '')), ['10.244.0.1', '10.244.0.2'], 'E16: no zone label')
  t.same(ips(pick([inA, inB], 'c')), ['10.244.0.1', '10.244.0.2'], 'no endpoint names our zone')
  t.same(ips(pick([inA, inB, endpoint('10.244.0.3')])).length, 3, 'one without hints disables them')
  t.same(
    ips(pick([inA, inB, endpoint('10.244.0.3', { ready: false })])),
    ['10.244.0.1'],
    'only ready ones are asked',
  )
  const onHere = endpoint('10.244.0.4', { zones: ['a'], nodes: ['here'] })
  const onOther = endpoint('10.244.0.5', { zones: ['a'], nodes: ['other'] })
  t.same(ips(pick([onHere, onOther])), ['10.244.0.4'], 'E14: same node goes before same zone')
  t.same(ips(pick([onOther, endpoint('10.244.0.6', { zones: ['b'], nodes: ['other'] })])), [
    '10.244.0.5',
  ])
  const iLocal = pick([endpoint('10.244.0.7', { zones: ['b'], ...local }), inA], 'a', {
    internalTrafficPolicy: 'Local',
  })
  t.same(keysOf(iLocal.localEndpoints), ['10.244.0.7:8080'], 'E17: not for local lists')
})

t.test('E18: a new zone label is a change of the Services that follow hints', async (t) => {
  const endpoints = [
    endpoint('10.244.0.1', { zones: ['a'] }),
    endpoint('10.244.0.2', { zones: ['b'] }),
  ]
  const feed = new Feed().node('a').service().slice({ endpoints })
  t.equal(feed.get().clusterEndpoints[0]?.ip, '10.244.0.1')
  t.equal(feed.node('b').get().clusterEndpoints[0]?.ip, '10.244.0.2')
})

t.test(
  'E06, E21: the node name decides what is local, and serving endpoints are listed for any policy',
  async (t) => {
    const spec = { internalTrafficPolicy: 'Local' }
    const service = new Feed()
      .service({ spec })
      .slice({
        endpoints: [
          endpoint('10.244.0.1', local),
          endpoint('10.244.9.9', { ready: false, serving: true, terminating: true }),
        ],
      })
      .get()
    t.same(keysOf(service.localEndpoints), ['10.244.0.1:8080'])
    t.same(keysOf(service.servingEndpoints), ['10.244.0.1:8080', '10.244.9.9:8080'])
  },
)

t.test(
  'S23, L06, L07: node port addresses are all, those of CIDRs, or those of words',
  async (t) => {
    const view = (nodePortAddresses: string[], family: IpFamily = 'IPv4') => {
      const feed = new Feed({ nodePortAddresses }).node(
        undefined,
        {},
        { addresses: [{ type: 'InternalIP', address: '192.168.0.1' }] },
      )
      feed.tracker.setLocalAddresses(['127.0.0.1', '192.168.0.1', '10.0.0.1', '::1', 'fd00::1'])
      return feed.state(family).node
    }
    t.match(view([]).nodePorts, {
      matchesAll: true,
      addresses: ['10.0.0.1', '127.0.0.1', '192.168.0.1'],
    })
    t.match(view(['10.0.0.0/8', '127.0.0.0/8']).nodePorts, {
      matchesAll: false,
      addresses: ['10.0.0.1', '127.0.0.1'],
    })
    t.match(view(['0.0.0.0/0']).nodePorts, { matchesAll: true })
    t.match(view(['192.0.2.0/24', '0.0.0.0/0']).nodePorts, { matchesAll: true }, 'one is enough')
    t.match(
      view(['10.0.0.0/8'], 'IPv6').nodePorts,
      { matchesAll: true },
      'no CIDR of the family means all',
    )
    t.match(view(['primary']).nodePorts, { matchesAll: false, addresses: ['192.168.0.1'] })
    const withLocalhost = ['primary', 'localhost']
    t.same(view(withLocalhost).nodePorts.addresses, ['127.0.0.1', '192.168.0.1'])
    t.same(view(withLocalhost, 'IPv6').nodePorts.addresses, ['::1', 'fd00::1'])
    t.same(view(['primary', '10.0.0.0/8'], 'IPv6').nodePorts.addresses, ['fd00::1'])
    t.match(view(['localhost'], 'IPv6').nodePorts, { matchesAll: false, addresses: ['::1'] })
    t.match(view(['all', 'localhost'], 'IPv6').nodePorts, { matchesAll: true })
    const asks = (...list: string[]) => view(list).nodePorts.asksForLoopback
    t.same([asks('0.0.0.0/0', '127.0.0.1/32'), asks('all', 'localhost')], [true, true])
    t.same([asks(), asks('all'), asks('0.0.0.0/0'), asks('primary')], [false, false, false, false])
    t.equal(
      view([], 'IPv6').primaryIp,
      'fd00::1',
      'without an address in the Node object the interfaces decide',
    )
    t.equal(view([]).primaryIp, '192.168.0.1')
  },
)

t.test(
  'R07, R08: pods are recognised by cluster CIDR, node CIDR, bridge, prefix or not at all',
  async (t) => {
    const detect = (detectLocal: TrackerSettings['detectLocal'], family: IpFamily = 'IPv4') =>
      new Feed({ detectLocal }).node(undefined, { podCIDRs: ['10.244.3.0/24'] }).state(family).node
        .localTraffic
    t.match(detect({ mode: 'ClusterCIDR', cidrs: ['10.244.0.0/16'] }), {
      by: 'cidrs',
      cidrs: [{ text: '10.244.0.0/16' }],
    })
    t.same(detect({ mode: 'ClusterCIDR', cidrs: ['10.244.0.0/16'] }, 'IPv6'), { by: 'none' })
    t.match(detect({ mode: 'NodeCIDR' }), { by: 'cidrs', cidrs: [{ text: '10.244.3.0/24' }] })
    t.same(detect({ mode: 'BridgeInterface', name: 'cbr0' }), { by: 'interface', name: 'cbr0' })
    t.same(detect({ mode: 'InterfaceNamePrefix', prefix: 'veth' }), {
      by: 'interface-prefix',
      prefix: 'veth',
    })
  },
)

t.test(
  'L08, L09: changed pod CIDRs and addresses of the node are used without a restart',
  async (t) => {
    const addresses = (address: string) => ({ addresses: [{ type: 'InternalIP', address }] })
    const feed = new Feed({ detectLocal: { mode: 'NodeCIDR' } })
    t.same(feed.state().node.localTraffic, { by: 'none' }, 'nothing is known before the node is')
    feed.node(undefined, { podCIDRs: ['10.244.3.0/24'] }, addresses('192.168.0.1'))
    const before = feed.state()
    t.match(before.node, {
      primaryIp: '192.168.0.1',
      localTraffic: { cidrs: [{ text: '10.244.3.0/24' }] },
    })
    feed.node(undefined, { podCIDRs: ['10.244.4.0/24'] }, addresses('192.168.0.2'))
    const after = feed.state()
    t.match(after.node, {
      primaryIp: '192.168.0.2',
      localTraffic: { cidrs: [{ text: '10.244.4.0/24' }] },
    })
    t.match(before.node, { primaryIp: '192.168.0.1' }, 'what was handed out stays as it was')
  },
)

t.test('R05: one change of a dual-stack Service reaches the state of both families', async (t) => {
  const spec = { clusterIPs: ['10.96.0.10', 'fd00:96::10'] }
  const feed = new Feed().service({ spec })
  t.same(
    [...feed.tracker.take().changed],
    [
      ['IPv4', 1],
      ['IPv6', 1],
    ],
  )
  feed.slice()
  t.same(
    [...feed.tracker.take().changed],
    [
      ['IPv4', 1],
      ['IPv6', 0],
    ],
    'a slice is of one family',
  )
})

t.test(
  'S33: a removed port of a Service leaves the state, and the others keep their reference',
  async (t) => {
    const http = { name: 'http', port: 80 }
    const feed = new Feed().service({
      spec: { ports: [http, { name: 'dns', protocol: 'UDP', port: 53 }] },
    })
    const kept = feed.get()
    feed.service({ spec: { ports: [http] } })
    const taken = feed.tracker.take()
    t.same([...taken.states[0]!.services.keys()], ['default/web:http/TCP'])
    t.equal(taken.states[0]!.services.get('default/web:http/TCP'), kept)
  },
)

t.test('R09: a CIDR of two ServiceCIDRs stays until both are deleted', async (t) => {
  const feed = new Feed()
  feed.tracker.upsertServiceCidr({ name: 'a', cidrs: ['10.96.0.0/12', 'fd00::/108'] })
  feed.tracker.upsertServiceCidr({ name: 'b', cidrs: ['10.96.0.0/12'] })
  t.equal(feed.state().serviceCidrs.length, 1, 'a range that comes later')
  feed.tracker.removeServiceCidr('a')
  t.same(
    feed.state().serviceCidrs.map(({ text }) => text),
    ['10.96.0.0/12'],
  )
  feed.tracker.removeServiceCidr('b')
  t.same(feed.state().serviceCidrs, [])
})

t.test(
  'S32, E09: a change that is reverted, or repeats a known value, changes nothing',
  async (t) => {
    const feed = new Feed().service().slice()
    const before = feed.state()
    feed.slice({ endpoints: [] }).slice()
    feed.slice({
      annotations: { 'endpoints.kubernetes.io/last-change-trigger-time': '2026-01-01T00:00:00Z' },
    })
    feed.service()
    const taken = feed.tracker.take()
    t.same([...taken.changed.values()], [0, 0])
    t.equal(taken.states[0], before)
  },
)

t.test(
  'S27: a Service leaves the state while it is an ExternalName, and returns with its endpoints',
  async (t) => {
    const feed = new Feed().service().slice()
    t.equal(feed.state().services.size, 1)
    t.equal(
      feed.service({ spec: { type: 'ExternalName', clusterIPs: [], clusterIP: '' } }).state()
        .services.size,
      0,
    )
    t.equal(feed.service().get().clusterEndpoints.length, 1)
  },
)

t.test('a slice that moves to another Service no longer counts for the first', async (t) => {
  const feed = new Feed().service().service({ name: 'api' }).slice()
  t.equal(feed.get().clusterEndpoints.length, 1)
  feed.slice({ service: 'api' })
  const { services } = feed.state()
  t.equal(services.get('default/web:http/TCP')?.clusterEndpoints.length, 0)
  t.equal(services.get('default/api:http/TCP')?.clusterEndpoints.length, 1)
})

t.test('E10: trigger times are reported once, with their batch', async (t) => {
  const feed = new Feed().service({ spec: { ports: [{ name: 'dns', protocol: 'UDP', port: 53 }] } })
  feed.tracker.take()
  feed.slice({
    annotations: { 'endpoints.kubernetes.io/last-change-trigger-time': '2026-01-01T00:00:00Z' },
  })
  const taken = feed.tracker.take()
  t.same(taken.triggerTimes.get('IPv4'), [Date.parse('2026-01-01T00:00:00Z')])
  t.same(feed.tracker.take().triggerTimes.size, 0)
})

t.test('E10: a trigger time before its change counts once, with the change', async (t) => {
  const at = (time: string) => ({
    annotations: { 'endpoints.kubernetes.io/last-change-trigger-time': time },
  })
  const early = '2026-01-01T00:00:00Z'
  const late = '2026-01-01T00:01:00Z'
  const feed = new Feed().service().slice(at(early))
  const times = () => feed.tracker.take().triggerTimes.get('IPv4') ?? []
  t.same(times(), [Date.parse(early)])
  feed.slice(at(late))
  t.same(times(), [], 'no endpoint has changed')
  feed.slice({ ...at(late), endpoints: [] })
  t.same(times(), [Date.parse(late)])
  feed.slice(at(late))
  t.same(times(), [], 'a change without a trigger of its own is not measured from an old one')
})

t.test(
  'E19, S20: health checks count unique ready local addresses over all ports, by family',
  async (t) => {
    const spec = {
      type: 'LoadBalancer',
      externalTrafficPolicy: 'Local',
      healthCheckNodePort: 32000,
      clusterIPs: ['10.96.0.10', 'fd00:96::10'],
      ports: [
        { name: 'http', port: 80, nodePort: 30080 },
        { name: 'https', port: 443, nodePort: 30443 },
      ],
    }
    const ports = [
      { name: 'http', port: 8080 },
      { name: 'https', port: 8443 },
    ]
    const feed = new Feed()
      .service({ spec })
      .slice({ ports, endpoints: [endpoint('10.244.0.1', local), endpoint('10.244.9.9')] })
    feed.slice({
      name: 'six',
      addressType: 'IPv6',
      ports,
      endpoints: [endpoint('fd00:244::1', local), endpoint('fd00:244::2', local)],
    })
    const first = feed.tracker.take().healthChecks
    t.same(first.get('default/web'), {
      namespace: 'default',
      name: 'web',
      port: 32000,
      localEndpoints: { IPv4: 1, IPv6: 2 },
    })
    feed.tracker.removeService('default', 'web')
    t.equal(feed.tracker.take().healthChecks.size, 0)
    t.equal(first.size, 1, 'what was handed out does not change')
  },
)

t.test('Services with a Local policy and without local endpoints are counted', async (t) => {
  const count = (feed: Feed) =>
    feed.tracker
      .take()
      .withoutLocalEndpoints.filter(({ family }) => family === 'IPv4')
      .map((row) => row.count)
  const spec = { internalTrafficPolicy: 'Local' }
  const feed = new Feed().service({ spec }).slice()
  t.same(count(feed), [1, 0])
  feed.slice({ endpoints: [endpoint('10.244.0.1', local)] })
  t.same(count(feed), [0, 0])
  feed.slice()
  t.same(count(feed), [1, 0])
  feed.tracker.removeService('default', 'web')
  t.same(count(feed), [0, 0])
})

type Step = (feed: Feed) => unknown

const names = ['a', 'b', 'c']
const steps: fc.Arbitrary<{ object: string; step: Step }> = fc
  .tuple(fc.constantFrom(...names), fc.nat({ max: 3 }), fc.boolean())
  .map(([name, variant, isService]) => ({
    object: `${isService ? 'service' : 'slice'} ${name}`,
    step: (feed) => {
      if (isService) return feed.service({ name, spec: { clusterIPs: [`10.96.0.${variant + 1}`] } })
      const endpoints = Array.from({ length: variant }, (_, index) =>
        endpoint(`10.244.0.${index + 1}`),
      )
      return feed.slice({ name: `${name}-1`, service: name, endpoints })
    },
  }))

const snapshot = (state: DesiredState) =>
  JSON.stringify(
    [...state.services].sort(([a], [b]) => (a < b ? -1 : 1)),
    (_, value: unknown) => (typeof value === 'bigint' ? String(value) : value),
  )

t.test('the order and the batches of events do not matter', async (t) => {
  fc.assert(
    fc.property(
      fc.array(steps),
      fc.infiniteStream(fc.boolean()),
      fc.nat(),
      (sequence, takes, seed) => {
        // Each object has only its last event, because the order of its own events matters.
        const last = [...new Map(sequence.map(({ object, step }) => [object, step])).values()]
        const rotated = last.map((_, index) => last[(index + seed) % last.length]!)
        const one = new Feed()
        for (const step of last) step(one)
        const other = new Feed()
        for (const step of rotated) {
          step(other)
          if (takes.next().value) other.tracker.take()
        }
        return snapshot(one.state()) === snapshot(other.state())
      },
    ),
  )
  t.pass('held')
})

t.test('an update and its inverse keep the references of all other Services', async (t) => {
  fc.assert(
    fc.property(fc.array(steps), fc.constantFrom(...names), (sequence, name) => {
      const feed = new Feed()
      for (const { step } of sequence) step(feed)
      feed.service({ name }).slice({ name: `${name}-1`, service: name })
      const before = feed.state().services
      feed.slice({ name: `${name}-1`, service: name, endpoints: [] })
      feed.tracker.take()
      feed.slice({ name: `${name}-1`, service: name })
      const after = feed.state().services
      return [...before].every(
        ([key, service]) => key.startsWith(`default/${name}:`) || after.get(key) === service,
      )
    }),
  )
  t.pass('held')
})

t.test(
  'a node that registers anew keeps what was known of it until it says something else',
  async (t) => {
    const feed = new Feed({ detectLocal: { mode: 'NodeCIDR' }, nodePortAddresses: ['primary'] })
    const status = { addresses: [{ type: 'InternalIP', address: '192.0.2.1' }] }
    feed.node('a', { podCIDR: '10.244.1.0/24' }, status)
    feed.tracker.setLocalAddresses(['127.0.0.1', '192.0.2.1', '192.0.2.2'])
    const first = feed.state().node
    t.match(first, { primaryIp: '192.0.2.1', localTraffic: { cidrs: [{ text: '10.244.1.0/24' }] } })
    feed.tracker.setNode(undefined)
    t.equal(feed.state().node, first, 'without an object')
    t.equal(feed.tracker.zone, 'a')
    feed.node('a')
    t.equal(feed.state().node, first, 'with one that has no address and no pod CIDR yet')
    feed.node(
      'b',
      { podCIDR: '10.244.2.0/24' },
      { addresses: [{ type: 'InternalIP', address: '192.0.2.2' }] },
    )
    t.match(feed.state().node, {
      primaryIp: '192.0.2.2',
      nodePorts: { addresses: ['192.0.2.2'] },
      localTraffic: { cidrs: [{ text: '10.244.2.0/24' }] },
    })
    t.equal(feed.tracker.zone, 'b')
  },
)

t.test('new settings of the node are in the next state, and nothing else changes', async (t) => {
  const feed = new Feed().service().slice()
  feed.tracker.setLocalAddresses(['192.0.2.1', '192.0.2.2'])
  const before = feed.state()
  feed.tracker.setNodeSettings({
    nodePortAddresses: ['192.0.2.2/32'],
    detectLocal: { mode: 'BridgeInterface', name: 'cni0' },
  })
  const after = feed.state()
  t.match(after.node, {
    nodePorts: { addresses: ['192.0.2.2'] },
    localTraffic: { by: 'interface', name: 'cni0' },
  })
  t.equal(after.services, before.services)
})
