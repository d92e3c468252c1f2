import t from 'tap'
import fc from 'fast-check'
import { parseEndpointSlice } from '../../lib/state/parse-endpoint-slice.js'
import { parseNode, parseServiceCidr } from '../../lib/state/parse-node.js'
import { parseService } from '../../lib/state/parse-service.js'
import { parseIp } from '../../lib/state/ip.js'
import type { Parsed } from '../../lib/state/objects.js'
import { examplesOf, valuesOf } from '../support/corpus.js'
import { endpoint, rawService, rawSlice } from './objects.js'

function accepted<T>(parsed: Parsed<T>): T {
  if (parsed.outcome !== 'accepted') throw new Error(`${parsed.outcome}: ${parsed.reason}`)
  return parsed.value
}

function warnings(parsed: Parsed<unknown>): readonly string[] {
  return parsed.outcome === 'accepted' ? parsed.warnings : []
}

const service = (spec: object, rest: object = {}) => parseService(rawService({ spec, ...rest }))

t.test(
  'S02: headless and ExternalName Services have no address and no ports to proxy',
  async (t) => {
    for (const spec of [
      { clusterIP: 'None', clusterIPs: ['None'] },
      { clusterIP: '', clusterIPs: [] },
      { type: 'ExternalName', externalName: 'example.org' },
    ]) {
      const value = accepted(service(spec))
      t.same([value.clusterIps, value.ports], [{}, []])
    }
  },
)

t.test('S03: a Service labelled for another proxy is ignored, whatever the value', async (t) => {
  const labels = { 'service.kubernetes.io/service-proxy-name': '' }
  t.equal(parseService(rawService({ labels })).outcome, 'ignored')
  t.equal(parseService(rawService({ labels: { other: 'x' } })).outcome, 'accepted')
})

t.test(
  'E01: slices with the headless label, and slices without a Service, are ignored',
  async (t) => {
    t.equal(
      parseEndpointSlice(rawSlice({ labels: { 'service.kubernetes.io/headless': '' } })).outcome,
      'ignored',
    )
    t.equal(parseEndpointSlice(rawSlice({ addressType: 'FQDN' })).outcome, 'ignored')
    t.equal(parseEndpointSlice(rawSlice({ service: '' })).outcome, 'ignored')
    t.equal(parseEndpointSlice(rawSlice({ addressType: 'IPv5' })).outcome, 'malformed')
  },
)

t.test('S06: each IP family has its ClusterIP, and clusterIP is the fallback', async (t) => {
  t.same(accepted(service({ clusterIPs: ['fd00::10', '10.96.0.10'] })).clusterIps, {
    IPv6: 'fd00::10',
    IPv4: '10.96.0.10',
  })
  t.same(accepted(service({ clusterIPs: undefined, clusterIP: '10.96.0.9' })).clusterIps, {
    IPv4: '10.96.0.9',
  })
  t.same(accepted(service({ clusterIPs: ['010.96.0.010'] })).clusterIps, { IPv4: '10.96.0.10' })
  t.equal(service({ clusterIPs: ['10.96.0.0x10'] }).outcome, 'malformed')
})

t.test(
  'an unspecified address, which a listener would take for all addresses, is left out',
  async (t) => {
    const parsed = service(
      { type: 'LoadBalancer', externalIPs: ['::', '1.2.3.4'] },
      { status: { loadBalancer: { ingress: [{ ip: '0.0.0.0' }, { ip: '192.0.2.1' }] } } },
    )
    const { externalIps, loadBalancerIps } = accepted(parsed)
    t.same([externalIps, loadBalancerIps], [['1.2.3.4'], ['192.0.2.1']])
    t.same(warnings(parsed), [
      'spec.externalIPs: "::" is the address of no Service and is left out',
      'status.loadBalancer.ingress: "0.0.0.0" is the address of no Service and is left out',
    ])
  },
)

t.test('S10, S11: only VIP ingress addresses are intercepted, never host names', async (t) => {
  const status = {
    loadBalancer: {
      ingress: [
        { ip: '192.0.2.1' },
        { ip: '192.0.2.2', ipMode: 'VIP' },
        { ip: '192.0.2.3', ipMode: 'Proxy' },
        { hostname: 'lb.example.org' },
        { ip: 'nonsense' },
      ],
    },
  }
  const parsed = service({ type: 'LoadBalancer' }, { status })
  t.same(accepted(parsed).loadBalancerIps, ['192.0.2.1', '192.0.2.2'])
  t.match(warnings(parsed), [/nonsense/])
  t.same(accepted(service({ type: 'ClusterIP' }, { status })).loadBalancerIps, [])
})

t.test('S12: ranges are trimmed, and a broken one is not ignored', async (t) => {
  const ranges = (loadBalancerSourceRanges: unknown) => service({ loadBalancerSourceRanges })
  t.same(accepted(ranges([' 10.0.0.0/8 ', 'fd00::/8'])).sourceRanges, ['10.0.0.0/8', 'fd00::/8'])
  t.same(accepted(ranges(['010.0.0.0/8'])).sourceRanges, ['10.0.0.0/8'])
  t.equal(ranges(['10.0.0.0/8', 'all']).outcome, 'malformed')
})

t.test(
  'S20: health-check node ports need type LoadBalancer with policy Local, and 0 is a warning',
  async (t) => {
    const spec = {
      type: 'LoadBalancer',
      externalTrafficPolicy: 'Local',
      healthCheckNodePort: 32000,
    }
    t.equal(accepted(service(spec)).healthCheckNodePort, 32000)
    t.equal(accepted(service({ ...spec, externalTrafficPolicy: 'Cluster' })).healthCheckNodePort, 0)
    t.match(warnings(service({ ...spec, healthCheckNodePort: 0 })), [/healthCheckNodePort/])
  },
)

t.test('S21: a missing or wrong affinity time-out means the default', async (t) => {
  const affinity = (timeoutSeconds?: unknown) =>
    service({
      sessionAffinity: 'ClientIP',
      sessionAffinityConfig: { clientIP: { timeoutSeconds } },
    })
  t.equal(accepted(affinity()).affinitySeconds, 10_800)
  t.equal(accepted(affinity(7)).affinitySeconds, 7)
  t.equal(accepted(affinity(86_401)).affinitySeconds, 10_800)
  t.equal(warnings(affinity(0)).length, 1)
  t.same(warnings(affinity(null)), [], 'null is what a client writes that has nothing to say')
  t.equal(accepted(service({ sessionAffinity: 'None' })).affinitySeconds, undefined)
})

t.test(
  'a Service with a broken port is refused as a whole, and the reason names the field',
  async (t) => {
    const reasonOf = (ports: unknown) => {
      const parsed = service({ ports })
      return parsed.outcome === 'malformed' ? parsed.reason : parsed.outcome
    }
    t.match(reasonOf([{ port: 65_536 }]), /spec\.ports\[0\]\.port 65536/)
    t.match(reasonOf([{ port: '80' }]), /spec\.ports\[0\]\.port "80"/)
    t.match(reasonOf([{ port: 80, nodePort: -1 }]), /nodePort/)
    t.match(reasonOf([{ port: 80, protocol: 'ICMP' }]), /protocol/)
    t.match(reasonOf([{ port: 80, name: 'a"; drop' }]), /port name/)
    t.match(reasonOf([{ port: 80 }, { port: 81 }]), /twice/)
    t.match(reasonOf('many'), /not a list/)
    t.equal(reasonOf([{ port: 80 }, { port: 80, protocol: 'UDP' }]), 'accepted')
  },
)

t.test('endpoints that the API server refuses are left out, from every source', async (t) => {
  const special = {
    IPv4: ['127.0.0.1', '127.3.2.1', '0.0.0.0', '169.254.169.254', '224.0.0.1', '255.255.255.255'],
    IPv6: ['::1', '::', 'fe80::1', 'ff02::1', 'ff0e::1'],
  }
  for (const family of ['IPv4', 'IPv6'] as const) {
    const good = family === 'IPv4' ? '10.180.0.1' : 'fd00:180::1'
    const endpoints = [...special[family], good].map((ip) => ({ addresses: [ip] }))
    const raw = rawSlice({ addressType: family, endpoints })
    const parsed = parseEndpointSlice(raw)
    t.same(
      accepted(parsed).endpoints.map(({ ip }) => ip),
      [good],
    )
    const warnings = parsed.outcome === 'accepted' ? parsed.warnings : []
    t.equal(warnings.length, special[family].length)
    t.match(warnings[0], /^endpoints\[0\]: \S+ is loopback/)
    const allowed = accepted(parseEndpointSlice(raw, { allowsLoopback: true })).endpoints
    t.ok(
      allowed.every(({ ip }) => ip === good || /^127\.|^::1$/.test(ip)),
      'a playground may have loopback, and nothing else',
    )
    t.ok(allowed.length > 1)
  }
  for (const text of ['::ffff:127.0.0.1', '0127.0.0.01']) {
    const raw = rawSlice({ endpoints: [{ addresses: [text] }] })
    t.same(accepted(parseEndpointSlice(raw)).endpoints, [], `${text}: in other words, too`)
  }
})

t.test(
  'E02-E05: endpoints have the first address of the slice family, and conditions have defaults',
  async (t) => {
    const parsed = parseEndpointSlice(
      rawSlice({
        ports: [
          { name: 'http', port: 8080 },
          { name: null, port: 9 },
          { name: 'x', port: 0 },
          { name: 'y' },
        ],
        endpoints: [
          endpoint('10.244.0.1'),
          endpoint('fd00::1'),
          { addresses: ['10.244.0.2', '10.244.0.3'] },
          { addresses: [], conditions: null },
          endpoint('10.244.0.4', { ready: false, serving: true, terminating: true }),
        ],
      }),
    )
    const { ports, endpoints } = accepted(parsed)
    t.same(
      ports.map(({ name, port }) => [name, port]),
      [
        ['http', 8080],
        ['', 9],
      ],
    )
    t.same(
      endpoints.map(({ ip, ready, serving, terminating }) => [ip, ready, serving, terminating]),
      [
        ['10.244.0.1', true, true, false],
        ['10.244.0.2', true, true, false],
        ['10.244.0.4', false, true, true],
      ],
    )
    t.equal(warnings(parsed).length, 4)
  },
)

t.test(
  'L05, H04: a Node gives one address for each IP family, internal before external, its pod CIDRs and its taint',
  async (t) => {
    const node = accepted(
      parseNode({
        metadata: { name: 'n', labels: { 'topology.kubernetes.io/zone': 'a' } },
        spec: {
          podCIDRs: ['10.244.1.0/24', 'bad'],
          taints: [{ key: 'other' }, { key: 'ToBeDeletedByClusterAutoscaler' }],
        },
        status: {
          addresses: [
            { type: 'Hostname', address: 'n' },
            { type: 'ExternalIP', address: 'fd00::9' },
            { type: 'ExternalIP', address: '198.51.100.1' },
            { type: 'InternalIP', address: '192.168.0.1' },
          ],
        },
      }),
    )
    t.match(node, {
      ips: ['192.168.0.1', 'fd00::9'],
      podCidrs: ['10.244.1.0/24'],
      zone: 'a',
      isBeingDeleted: false,
      isTaintedForDeletion: true,
    })
    t.same(
      accepted(parseServiceCidr({ metadata: { name: 'c' }, spec: { cidrs: ['10.96.0.0/12', 7] } }))
        .cidrs,
      ['10.96.0.0/12'],
    )
  },
)

t.test('L11: podCIDR is used if a Node has no podCIDRs', async (t) => {
  const node = (spec: object) => accepted(parseNode({ metadata: { name: 'n' }, spec }))
  t.same(node({ podCIDR: '10.244.1.0/24' }).podCidrs, ['10.244.1.0/24'])
  t.same(node({ podCIDR: '10.244.1.0/24', podCIDRs: ['fd00::/64'] }).podCidrs, ['fd00::/64'])
  t.same(node({ podCIDR: '' }).podCidrs, [])
  t.notOk(node({ taints: [{ key: 'other' }] }).isTaintedForDeletion)
})

t.test('options come from our annotations only, and long ones are left out', async (t) => {
  const annotations = {
    'kube-proxy-ts/a': 'x',
    other: 'y',
    'kube-proxy-ts/b': 'z'.repeat(4097),
    'kube-proxy-ts/longest': 'z'.repeat(4096),
    'kube-proxy-ts/c': 3,
  }
  const parsed = parseService(rawService({ annotations }))
  t.match(warnings(parsed), [
    /^annotation "kube-proxy-ts\/b": longer than 4096 characters/,
    /^annotation "kube-proxy-ts\/a" has no effect, because nothing has this name/,
    /^annotation "kube-proxy-ts\/longest" has no effect/,
  ])
  t.same(accepted(parsed).options, {
    a: 'x',
    longest: 'z'.repeat(4096),
  })
})

t.test('E03: slice ports have one of three protocols, and others are refused', async (t) => {
  const ports = ['TCP', 'UDP', 'SCTP', 'ICMP', undefined].map((protocol, index) => ({
    name: `p${index}`,
    port: 80,
    protocol,
  }))
  const parsed = parseEndpointSlice(rawSlice({ ports }))
  t.same(
    accepted(parsed).ports.map(({ name, protocol }) => `${name} ${protocol}`),
    ['p0 TCP', 'p1 UDP', 'p2 SCTP', 'p4 TCP'],
  )
  t.match(warnings(parsed), [/^ports\[3\]: .*ICMP/])
})

t.test('the annotation of a slice is its weight, and 1 is the default', async (t) => {
  const weight = (text?: string) => {
    const annotations = text === undefined ? {} : { 'kube-proxy-ts/weight': text }
    return accepted(parseEndpointSlice(rawSlice({ annotations }))).endpoints[0]?.weight
  }
  t.same([weight(), weight('0'), weight('7'), weight('65535')], [1, 0, 7, 65_535])
  t.same([weight('65536'), weight('-1'), weight('1.5'), weight('heavy')], [1, 1, 1, 1])
})

t.test('a namespace is a DNS name; objects without one are in default', async (t) => {
  const of = (namespace: unknown) => {
    const raw = rawService()
    return parseService({ ...raw, metadata: { ...raw.metadata, namespace } })
  }
  t.equal(accepted(of(undefined)).namespace, 'default')
  t.equal(accepted(of('a.b-c')).namespace, 'a.b-c')
  for (const bad of ['', 'A', '-a', 'a_b', 'a b', '$(id)', 7, {}, 'x'.repeat(254)]) {
    t.match(of(bad), { outcome: 'malformed', reason: /metadata\.namespace/ })
  }
})

/** Real objects with parts replaced by random JSON, which find more errors than random values. */
function mangled(base: object): fc.Arbitrary<unknown> {
  const paths = pathsOf(base)
  const edit = fc.tuple(fc.constantFrom(...paths), fc.jsonValue())
  return fc.array(edit, { maxLength: 4 }).map((edits) => {
    let copy: unknown = structuredClone(base)
    for (const [path, value] of edits) copy = withAt(copy, path, value)
    return copy
  })
}

function pathsOf(value: unknown, path: string[] = []): string[][] {
  if (typeof value !== 'object' || value === null) return [path]
  return [path, ...Object.entries(value).flatMap(([key, item]) => pathsOf(item, [...path, key]))]
}

function withAt(target: unknown, path: readonly string[], value: unknown): unknown {
  const [key, ...rest] = path
  if (key === undefined) return value
  if (typeof target !== 'object' || target === null) return target
  const edited = { [key]: withAt((target as Record<string, unknown>)[key], rest, value) }
  const copy: object = Array.isArray(target) ? target.slice() : { ...target }
  return Object.assign(copy, edited)
}

t.test('no JSON makes a parser throw or return an invalid object', async (t) => {
  const serviceBase = rawService({
    spec: {
      type: 'LoadBalancer',
      externalIPs: ['1.2.3.4'],
      loadBalancerSourceRanges: ['10.0.0.0/8'],
      sessionAffinity: 'ClientIP',
    },
    status: { loadBalancer: { ingress: [{ ip: '192.0.2.1' }] } },
  })
  fc.assert(
    fc.property(fc.oneof(fc.jsonValue(), mangled(serviceBase)), (raw) => {
      const parsed = parseService(raw)
      if (parsed.outcome !== 'accepted') return true
      const { ports, clusterIps, externalIps, name } = parsed.value
      return (
        name.length < 254 &&
        ports.every(
          ({ port, nodePort }) => port > 0 && port < 65_536 && nodePort >= 0 && nodePort < 65_536,
        ) &&
        Object.entries(clusterIps).every(([family, ip]) => parseIp(ip)?.family === family) &&
        externalIps.every((ip) => parseIp(ip)?.text === ip)
      )
    }),
    { numRuns: 3000, examples: examplesOf(valuesOf('service')) },
  )
  fc.assert(
    fc.property(fc.oneof(fc.jsonValue(), mangled(rawSlice())), (raw) => {
      const parsed = parseEndpointSlice(raw)
      if (parsed.outcome !== 'accepted') return true
      return parsed.value.endpoints.every(({ ip }) => parseIp(ip)?.family === parsed.value.family)
    }),
    { numRuns: 3000, examples: examplesOf(valuesOf('endpointslice')) },
  )
  fc.assert(
    fc.property(
      fc.jsonValue() as fc.Arbitrary<unknown>,
      (raw) => parseNode(raw).outcome !== 'ignored',
    ),
    { examples: examplesOf(valuesOf('node')) },
  )
  t.equal(parseService(rawService({ name: 'x'.repeat(1_000_000) })).outcome, 'malformed')
  t.ok(JSON.stringify(parseService(rawService({ name: 'x'.repeat(1_000_000) }))).length < 1000)
})
