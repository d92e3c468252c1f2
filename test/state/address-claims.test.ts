import fc from 'fast-check'
import t from 'tap'
import { service, states } from '../support/states.js'
import { Tracker } from '../../lib/state/tracker.js'
import { trackerSettings } from '../../lib/config/tracker-settings.js'
import { collect } from '../../lib/sources/collected-states.js'
import { configWith } from '../../lib/config/load.js'
import { endpoint, rawService, rawSlice } from './objects.js'
import { parseEndpointSlice } from '../../lib/state/parse-endpoint-slice.js'
import { parseService } from '../../lib/state/parse-service.js'

/** A ClusterIP belongs to its Service, even if other Services ask for it. */

const shared = '10.96.0.10'
const free = '198.51.100.7'
const owner = service({ name: 'web', clusterIp: shared, port: 80 })
const asker = service({
  name: 'asker',
  clusterIp: '10.96.0.66',
  externalIps: [shared, free],
  loadBalancerIps: [shared],
})
const asked = 'default/asker:http/TCP'

t.test(
  'an external address that is the ClusterIP of another Service is not served, in any order',
  async (t) => {
    for (const specs of [
      [owner, asker],
      [asker, owner],
    ]) {
      t.match(
        states()
          .put(...specs)
          .take()
          .services.get(asked),
        {
          externalIps: [free],
          loadBalancerIps: [],
          withheldIps: [{ ip: shared, owner: 'default/web' }],
          externallyAccessible: true,
        },
      )
    }
    const { externallyAccessible } =
      states()
        .put(owner, { ...asker, externalIps: [shared] })
        .take()
        .services.get(asked) ?? {}
    t.equal(externallyAccessible, false, 'nothing is left to come in by')
  },
)

t.test('an external address with another port or protocol is served', async (t) => {
  for (const spec of [
    { ...asker, port: 81 },
    { ...asker, protocol: 'UDP' as const },
    { ...asker, clusterIp: shared },
  ]) {
    const cluster = spec.clusterIp === shared ? states().put(spec) : states().put(owner, spec)
    const [built] = [...cluster.take().services.values()].filter(
      ({ name }) => name.name === 'asker',
    )
    t.match(built, { externalIps: [shared, free], loadBalancerIps: [shared], withheldIps: [] })
  }
})

t.test('an external address is served again after its owner is deleted', async (t) => {
  const others = Array.from({ length: 20 }, (_, index) =>
    service({ name: `other-${index}`, clusterIp: `10.96.1.${index}`, externalIps: [free] }),
  )
  const cluster = states().put(owner, asker, ...others)
  const first = cluster.take()
  const second = cluster.put({ ...owner, endpoints: [] }).take()
  t.equal(second.services.get(asked), first.services.get(asked), 'endpoints make no difference')
  const moved = cluster.put({ ...owner, port: 8080 }).take()
  t.match(moved.services.get(asked), { externalIps: [shared, free], withheldIps: [] })
  const back = cluster.put(owner).take()
  t.match(back.services.get(asked), { externalIps: [free] })
  const last = cluster.remove(owner).take()
  t.match(last.services.get(asked), { externalIps: [shared, free], loadBalancerIps: [shared] })
  const { added, changed, removed } = last.services.since(back.services)
  t.same([added.length, changed.length, removed.length], [0, 1, 1])
})

t.test('the order of Service changes makes no difference', async (t) => {
  const ips = ['10.96.0.1', '10.96.0.2', '10.96.0.3']
  const step = fc.record({
    name: fc.constantFrom('a', 'b', 'c'),
    isGone: fc.boolean(),
    clusterIp: fc.constantFrom(...ips),
    port: fc.constantFrom(80, 81),
    externalIps: fc.subarray(ips),
  })
  fc.assert(
    fc.property(fc.array(step, { maxLength: 12 }), (steps) => {
      const cluster = states()
      const last = new Map<string, ReturnType<typeof service>>()
      for (const { isGone, ...spec } of steps) {
        const each = service(spec)
        if (isGone) {
          cluster.remove(each)
          last.delete(spec.name)
        } else {
          cluster.put(each)
          last.set(spec.name, each)
        }
        const sorted = (state: ReturnType<typeof cluster.take>) => [...state.services].sort()
        t.same(
          sorted(cluster.take()),
          sorted(
            states()
              .put(...last.values())
              .take(),
          ),
        )
      }
    }),
    { numRuns: 60 },
  )
})

t.test('the warning about an address is repeated only for another owner', async (t) => {
  const node = { nodeName: 'node-1', families: ['IPv4'] } as const
  const settings = trackerSettings(configWith({}), 'nftables', node)
  const tracker = new Tracker(settings)
  const put = (name: string, spec: object) => {
    const parsed = parseService(rawService({ name, spec }))
    if (parsed.outcome !== 'accepted') throw new Error(parsed.outcome)
    tracker.upsertService(parsed.value)
  }
  const at = (ip: string) => ({ clusterIP: ip, clusterIPs: [ip] })
  put('web', at(shared))
  put('asker', { ...at('10.96.0.66'), externalIPs: [shared] })
  t.match(tracker.take().warnings, [
    {
      service: { namespace: 'default', name: 'asker' },
      warning:
        /10\.96\.0\.10 is not served at port 80\/TCP: it is the ClusterIP of .* default\/web;/,
    },
  ])
  put('asker', { ...at('10.96.0.66'), externalIPs: [shared], sessionAffinity: 'ClientIP' })
  t.same(tracker.take().warnings, [])
  tracker.removeService('default', 'web')
  put('new', at(shared))
  t.match(tracker.take().warnings, [{ warning: /default\/new/ }])

  const { sink, taken } = collect(settings, [])
  sink.upsert('Service', rawService({ spec: at(shared) }))
  sink.upsert(
    'Service',
    rawService({ name: 'x', spec: { ...at('10.96.0.9'), externalIPs: [shared] } }),
  )
  t.match(taken().warnings, [/^Service default\/x: address 10\.96\.0\.10 is not served/])
})

/** The setting of kernel modes, which translate a connection only once. */
const once = { translatesOnce: true }

const inner = service({ name: 'inner', clusterIp: '10.96.0.20', port: 80 })
const loop = (target: string, targetPort: number) =>
  service({
    name: 'loop',
    clusterIp: '10.96.0.30',
    port: 80,
    endpoints: [{ ip: target, port: targetPort }],
  })
const looping = 'default/loop:http/TCP'

t.test('an endpoint that is a ClusterIP, even its own, is not used in kernel modes', async (t) => {
  const own = loop('10.96.0.30', 80)
  const away = loop('10.96.0.20', 80)
  for (const [specs, owner] of [
    [[own], 'default/loop'],
    [[away, inner], 'default/inner'],
    [[inner, away], 'default/inner'],
  ] as const) {
    const [first, ...rest] = specs
    const cluster = states('IPv4', once).put(first)
    cluster.take()
    t.match(
      cluster
        .put(...rest)
        .take()
        .services.get(looping),
      {
        ...{
          clusterEndpoints: [],
          servingEndpoints: [],
          hasAnyEndpoints: false,
          internal: 'reject',
        },
        unusableEndpoints: [{ owner }],
      },
    )
  }
  const works = states().put(inner, away).take().services.get(looping)
  t.match(works, { clusterEndpoints: [{ ip: '10.96.0.20' }], unusableEndpoints: [] }, 'userspace')
  const mixed = { ...away, endpoints: [...away.endpoints, { ip: '10.180.0.9', port: 8080 }] }
  t.match(states('IPv4', once).put(inner, mixed).take().services.get(looping), {
    clusterEndpoints: [{ ip: '10.180.0.9' }],
    internal: 'cluster',
  })
  for (const other of [loop('10.96.0.20', 81), loop('10.96.0.21', 80)]) {
    const used = states('IPv4', once).put(inner, other).take().services.get(looping)
    t.match(used, { internal: 'cluster', unusableEndpoints: [] }, 'no Service answers there')
  }
})

t.test('such an endpoint is used once its address is no ClusterIP any more', async (t) => {
  const others = Array.from({ length: 20 }, (_, index) =>
    service({ name: `other-${index}`, clusterIp: `10.96.1.${index}` }),
  )
  const cluster = states('IPv4', once).put(loop('10.96.0.20', 80), inner, ...others)
  const first = cluster.take()
  const moved = cluster.put({ ...inner, port: 8080 }).take()
  t.match(moved.services.get(looping), { internal: 'cluster' })
  const { added, changed, removed } = moved.services.since(first.services)
  t.same([added.length, changed.length, removed.length], [0, 2, 0], 'nothing else is built anew')
  t.match(cluster.put(inner).take().services.get(looping), { internal: 'reject' })
  t.match(cluster.remove(inner).take().services.get(looping), { internal: 'cluster' })
  cluster.put(inner, loop('10.180.0.1', 8080)).take()
  const last = cluster.put({ ...inner, port: 8080 }).take()
  t.match(last.services.get(looping), { internal: 'cluster', unusableEndpoints: [] })
})

t.test('the Service with such an endpoint is warned, once', async (t) => {
  const node = { nodeName: 'node-1', families: ['IPv4'] } as const
  const tracker = new Tracker(trackerSettings(configWith({}), 'nftables', node))
  const put = (spec: object) => {
    const at = { clusterIP: shared, clusterIPs: [shared] }
    const parsed = parseService(rawService({ spec: { ...at, ...spec } }))
    if (parsed.outcome === 'accepted') tracker.upsertService(parsed.value)
  }
  const ports = [{ name: 'http', protocol: 'TCP', port: 80 }]
  const slice = parseEndpointSlice(rawSlice({ endpoints: [endpoint(shared)], ports }))
  if (slice.outcome === 'accepted') tracker.upsertEndpointSlice(slice.value)
  put({})
  t.match(tracker.take().warnings, [
    {
      service: { namespace: 'default', name: 'web' },
      event: 'EndpointLeadsBack',
      warning: /endpoint 10\.96\.0\.10:80 of port 80\/TCP is not used: it is the ClusterIP of/,
    },
  ])
  put({ sessionAffinity: 'ClientIP' })
  t.same(tracker.take().warnings, [])
  const userspace = trackerSettings(configWith({}), 'userspace', node)
  t.equal(userspace.translatesOnce, false, 'there the connection is a new one')
})
