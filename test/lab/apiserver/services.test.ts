import t from 'tap'
import { textAt, textsAt } from '../../../lib/lab/apiserver/json.js'
import { createApiServer, type ApiServerOptions } from '../../../lib/lab/apiserver/server.js'
import { ApiError } from '../../../lib/lab/apiserver/status.js'

const port = { port: 80 }

function cluster(options: Partial<ApiServerOptions> = {}) {
  const api = createApiServer(options)
  const kind = api.registry.resources.byKind('v1', 'Service')!
  const service = (name: string, spec: object, extra: object = {}) => ({
    apiVersion: 'v1',
    kind: 'Service',
    metadata: { name, ...extra },
    spec: { ...spec },
  })
  return {
    api,
    create: (name: string, spec: object) => api.registry.create(kind, service(name, spec)),
    update: (name: string, spec: object) => api.registry.update(kind, service(name, spec)),
    remove: (name: string) => api.registry.delete(kind, 'default', name),
    dryRun: (name: string, spec: object) =>
      api.registry.create(kind, service(name, spec), { dryRun: true }),
  }
}

/** The fields that the error names as refused. */
function refused(work: () => unknown): readonly string[] {
  try {
    work()
  } catch (error) {
    if (!(error instanceof ApiError)) throw error
    const causes = (error.details['causes'] ?? []) as { field: string; message: string }[]
    return causes.map(({ field, message }) => `${field}: ${message}`)
  }
  return []
}

void t.test('missing fields are filled in as the real server does', (t) => {
  const { create } = cluster()
  t.match(create('plain', { ports: [port] }), {
    metadata: { namespace: 'default', uid: /^[0-9a-f-]{36}$/, creationTimestamp: /Z$/ },
    spec: {
      type: 'ClusterIP',
      clusterIP: '10.96.0.16',
      clusterIPs: ['10.96.0.16'],
      ipFamilies: ['IPv4'],
      ipFamilyPolicy: 'SingleStack',
      internalTrafficPolicy: 'Cluster',
      sessionAffinity: 'None',
      ports: [{ port: 80, targetPort: 80, protocol: 'TCP' }],
      externalTrafficPolicy: undefined,
    },
    status: { loadBalancer: {} },
  })
  t.match(
    create('node', {
      type: 'NodePort',
      ports: [port, { port: 81, name: 'b' }].map((each, index) => ({ name: `p${index}`, ...each })),
    }).spec,
    {
      externalTrafficPolicy: 'Cluster',
      ports: [{ nodePort: 30_000 }, { nodePort: 30_001 }],
    },
  )
  t.match(
    create('lb', { type: 'LoadBalancer', externalTrafficPolicy: 'Local', ports: [port] }).spec,
    {
      allocateLoadBalancerNodePorts: true,
      healthCheckNodePort: 30_003,
      ports: [{ nodePort: 30_002 }],
    },
  )
  t.match(
    create('lb2', { type: 'LoadBalancer', allocateLoadBalancerNodePorts: false, ports: [port] })
      .spec,
    {
      ports: [{ nodePort: undefined }],
    },
  )
  t.match(create('sticky', { sessionAffinity: 'ClientIP', ports: [port] }).spec, {
    sessionAffinityConfig: { clientIP: { timeoutSeconds: 10_800 } },
  })
  t.match(create('headless', { clusterIP: 'None', selector: { a: 'b' } }).spec, {
    clusterIP: 'None',
    clusterIPs: ['None'],
    ipFamilies: ['IPv4'],
  })
  t.match(create('name', { type: 'ExternalName', externalName: 'example.com' }).spec, {
    clusterIP: undefined,
    ipFamilies: undefined,
  })
  t.end()
})

void t.test('dual stack: addresses follow policy, families and the given addresses', (t) => {
  const { create, update } = cluster()
  const both = create('both', { ipFamilyPolicy: 'PreferDualStack', ports: [port] })
  t.match(both.spec, {
    ipFamilies: ['IPv4', 'IPv6'],
    clusterIPs: ['10.96.0.16', 'fd00:10:96::10'],
  })
  t.match(create('six', { ipFamilies: ['IPv6'], ports: [port] }).spec, { clusterIP: /^fd00:/ })
  t.match(
    create('turned', {
      ipFamilyPolicy: 'RequireDualStack',
      ipFamilies: ['IPv6', 'IPv4'],
      ports: [port],
    }).spec,
    { clusterIPs: [/^fd00:/, /^10\./] },
  )
  t.match(create('given', { clusterIP: 'fd00:10:96::99', ports: [port] }).spec, {
    ipFamilies: ['IPv6'],
    clusterIPs: ['fd00:10:96::99'],
  })
  create('grows', { ports: [port] })
  t.equal(
    textsAt(
      update('grows', { ipFamilyPolicy: 'PreferDualStack', ports: [port] }),
      'spec',
      'clusterIPs',
    ).length,
    2,
  )
  const clusterIPs = textsAt(both, 'spec', 'clusterIPs')
  const ipFamilies = ['IPv4', 'IPv6']
  const single = { ipFamilyPolicy: 'SingleStack', ports: [port] }
  const [first] = clusterIPs
  t.strictSame(
    textsAt(
      update('both', { ...single, clusterIP: first, clusterIPs, ipFamilies }),
      'spec',
      'clusterIPs',
    ),
    [first],
    'a patch of the policy alone',
  )
  t.strictSame(textsAt(update('grows', single), 'spec', 'ipFamilies'), ['IPv4'])

  const four = cluster({ serviceCidrs: ['10.0.0.0/24'] })
  t.match(four.create('prefer', { ipFamilyPolicy: 'PreferDualStack', ports: [port] }).spec, {
    ipFamilies: ['IPv4'],
  })
  t.match(
    refused(() => four.create('need', { ipFamilyPolicy: 'RequireDualStack', ports: [port] })),
    [/ipFamilyPolicy: Forbidden: this cluster is not configured for dual-stack services/],
  )
  t.match(
    refused(() => four.create('six', { ipFamilies: ['IPv6'], ports: [port] })),
    [/ipFamilies\[0\]: .*not configured on this cluster/],
  )
  t.end()
})

void t.test('an address or port is allocated once, and again after it was freed', (t) => {
  const { api, create, remove, dryRun, update } = cluster({
    serviceCidrs: ['10.0.0.0/29'],
    nodePorts: { from: 30_000, to: 30_001 },
  })
  dryRun('dry', { type: 'NodePort', ports: [port] })
  for (const name of ['a', 'b', 'c', 'd', 'e', 'f']) create(name, { ports: [port] })
  t.match(
    refused(() => create('g', { ports: [port] })),
    [/no free IPv4 address is left/],
  )
  const freed = textAt(remove('c'), 'spec', 'clusterIP')
  t.match(create('g', { ports: [port] }).spec, { clusterIP: freed })
  t.match(
    refused(() => dryRun('h', { clusterIP: freed, ports: [port] })),
    [/spec.clusterIPs: .*provided IP is already allocated/],
  )
  t.match(
    refused(() => dryRun('h', { clusterIP: '10.9.9.9', ports: [port] })),
    [/not in the valid range/],
  )
  // S09, R09: in a growing cluster a second ServiceCIDR makes room at once.
  api.put({
    apiVersion: 'networking.k8s.io/v1',
    kind: 'ServiceCIDR',
    metadata: { name: 'more' },
    spec: { cidrs: ['10.0.1.0/29'] },
  })
  t.match(create('h', { ports: [port] }).spec, { clusterIP: /^10\.0\.1\./ })

  update('a', { type: 'NodePort', ports: [{ port: 80, nodePort: 30_001 }] })
  t.match(
    refused(() => update('b', { type: 'NodePort', ports: [{ port: 80, nodePort: 30_001 }] })),
    [/spec.ports\[0\].nodePort: .*provided port is already allocated/],
  )
  t.match(
    refused(() => update('b', { type: 'NodePort', ports: [{ port: 80, nodePort: 99 }] })),
    [/The range of valid ports is 30000-30001/],
  )
  update('b', { type: 'NodePort', ports: [port] })
  t.match(
    refused(() => update('d', { type: 'NodePort', ports: [port] })),
    [/range is full/],
  )
  // S25: both protocols of one Service may have the same number.
  remove('a')
  const dns = [
    { name: 'udp', port: 53, protocol: 'UDP', nodePort: 30_001 },
    { name: 'tcp', port: 53, protocol: 'TCP', nodePort: 30_001 },
  ]
  t.match(update('d', { type: 'NodePort', ports: dns }).spec, { ports: dns })
  t.end()
})

void t.test(
  'an update keeps allocated values, and drops those that the new type does not use',
  (t) => {
    const { create, update } = cluster()
    const spec = { type: 'LoadBalancer', externalTrafficPolicy: 'Local', ports: [port] }
    create('a', spec)
    t.match(update('a', { ...spec, selector: { x: 'y' } }).spec, {
      clusterIP: '10.96.0.16',
      healthCheckNodePort: 30_001,
      ports: [{ nodePort: 30_000 }],
    })
    const plain = update('a', { ports: [port] })
    t.match(plain.spec, {
      clusterIP: '10.96.0.16',
      healthCheckNodePort: undefined,
      externalTrafficPolicy: undefined,
    })
    t.match(plain.spec, { ports: [{ nodePort: undefined }] })
    // What a client that switches affinity off sends along with it.
    const sessionAffinityConfig = { clientIP: { timeoutSeconds: 7 } }
    update('a', { sessionAffinity: 'ClientIP', sessionAffinityConfig, ports: [port] })
    t.match(update('a', { sessionAffinityConfig, ports: [port] }).spec, {
      sessionAffinity: 'None',
      sessionAffinityConfig: undefined,
    })
    // S27: the type of a Service changes in both directions.
    t.match(update('a', { type: 'ExternalName', externalName: 'x.y' }).spec, {
      clusterIP: undefined,
    })
    t.match(update('a', { type: 'NodePort', ports: [port] }).spec, {
      clusterIP: /^10\.96\./,
      ports: [{ nodePort: /^30/ }],
    })
    t.match(
      refused(() => update('a', { clusterIP: '10.96.0.99', ports: [port] })),
      [/spec.clusterIPs\[0\]: .*may not change once set/],
    )
    // A patch of clusterIP alone keeps the list as it was.
    const clusterIPs = textsAt(update('a', { ports: [port] }), 'spec', 'clusterIPs')
    t.match(update('a', { clusterIP: '', clusterIPs, ports: [port] }).spec, { clusterIPs })
    t.match(
      refused(() => update('a', { clusterIP: 'None', clusterIPs, ports: [port] })),
      [/spec.clusterIPs\[0\]: Invalid value: \["None"\]: may not change once set/],
    )
    t.match(
      refused(() => update('a', { ipFamilies: ['IPv6'], ports: [port] })),
      [/may not change once set/],
    )
    t.end()
  },
)

void t.test('S25: in a new Service the protocols of one port share a node port', (t) => {
  const { create, update } = cluster()
  const dns = (type: string, nodePort?: number) => ({
    type,
    ports: [
      { name: 'tcp', port: 53, protocol: 'TCP' },
      { name: 'udp', port: 53, protocol: 'UDP', ...(nodePort === undefined ? {} : { nodePort }) },
    ],
  })
  t.match(create('a', dns('NodePort')).spec, {
    ports: [{ nodePort: 30_000 }, { nodePort: 30_000 }],
  })
  const given = create('b', dns('NodePort', 30_099))
  t.match(given.spec, { ports: [{ nodePort: 30_099 }, { nodePort: 30_099 }] })
  // Not with another port of the same protocol: no update of such a Service would be valid.
  const other = { name: 'http', port: 80, protocol: 'TCP', nodePort: 30_099 }
  const { type, ports } = dns('NodePort', 30_099)
  t.match(
    refused(() => create('d', { type, ports: [...ports, other] })),
    [/^spec.ports\[0\].nodePort: Invalid value: 30099: provided port is already allocated/],
  )
  create('c', dns('ClusterIP'))
  t.match(update('c', dns('NodePort')).spec, {
    ports: [{ nodePort: 30_001 }, { nodePort: 30_002 }],
  })
  t.end()
})

void t.test('a node port stays with the name of its port', (t) => {
  const { create, update } = cluster()
  const named = (...names: readonly string[]) => ({
    type: 'NodePort',
    ports: names.map((name, index) => ({ name, port: 80 + index })),
  })
  create('a', named('http', 'https'))
  t.match(update('a', named('new', 'http', 'https')).spec, {
    ports: [{ nodePort: 30_002 }, { nodePort: 30_000 }, { nodePort: 30_001 }],
  })
  t.match(update('a', named('https', 'http')).spec, {
    ports: [{ nodePort: 30_001 }, { nodePort: 30_000 }],
  })
  t.end()
})

void t.test('Services that the real server refuses are refused, and the field is named', (t) => {
  const { dryRun, api } = cluster()
  const cases: readonly (readonly [spec: object, expected: RegExp])[] = [
    [{}, /^spec.ports: Required value/],
    [
      { ports: [{ port: 0 }] },
      /^spec.ports\[0\].port: Invalid value: 0: must be between 1 and 65535/,
    ],
    [{ ports: [{ port: '80' }] }, /^spec.ports\[0\].port: Invalid value: "80"/],
    [{ ports: [port, { port: 81 }] }, /^spec.ports\[0\].name: Required value/],
    [{ ports: [{ port: 80, name: 'A' }] }, /^spec.ports\[0\].name: Invalid value: "A"/],
    [
      {
        ports: [
          { name: 'a', port: 80 },
          { name: 'a', port: 81 },
        ],
      },
      /^spec.ports\[1\].name: Duplicate value: "a"/,
    ],
    [
      {
        ports: [
          { name: 'a', port: 80 },
          { name: 'b', port: 80 },
        ],
      },
      /^spec.ports\[1\]: Duplicate value/,
    ],
    [
      { ports: [{ port: 80, protocol: 'ICMP' }] },
      /^spec.ports\[0\].protocol: Unsupported value: "ICMP"/,
    ],
    [
      { ports: [{ port: 80, targetPort: 'much-too-long-name' }] },
      /^spec.ports\[0\].targetPort: Invalid value/,
    ],
    [
      { ports: [{ port: 80, nodePort: 30_000 }] },
      /nodePort: Forbidden: may not be used when `type` is 'ClusterIP'/,
    ],
    [
      { type: 'Cluster', ports: [port] },
      /^spec.type: Unsupported value: "Cluster": supported values/,
    ],
    [{ sessionAffinity: 'Cookie', ports: [port] }, /^spec.sessionAffinity: Unsupported value/],
    [
      {
        sessionAffinity: 'ClientIP',
        sessionAffinityConfig: { clientIP: { timeoutSeconds: 86_401 } },
        ports: [port],
      },
      /timeoutSeconds: Invalid value: 86401/,
    ],
    [
      { externalTrafficPolicy: 'Local', ports: [port] },
      /^spec.externalTrafficPolicy: .*externally-accessible/,
    ],
    [
      { internalTrafficPolicy: 'Near', ports: [port] },
      /^spec.internalTrafficPolicy: Unsupported value/,
    ],
    [
      { trafficDistribution: 'Near', ports: [port] },
      /^spec.trafficDistribution: Unsupported value/,
    ],
    [{ externalIPs: ['010.0.0.1'], ports: [port] }, /^spec.externalIPs\[0\]: .*valid IP/],
    [{ externalIPs: ['127.0.0.1'], ports: [port] }, /^spec.externalIPs\[0\]: .*loopback/],
    [{ externalIPs: ['169.254.1.1'], ports: [port] }, /^spec.externalIPs\[0\]: .*link-local/],
    [{ externalIPs: ['0.0.0.0'], ports: [port] }, /^spec.externalIPs\[0\]: .*unspecified/],
    [
      { loadBalancerSourceRanges: ['10.0.0.0/8'], ports: [port] },
      /loadBalancerSourceRanges\[0\]: Forbidden/,
    ],
    [
      { type: 'LoadBalancer', loadBalancerSourceRanges: ['10.0.0.0'], ports: [port] },
      /loadBalancerSourceRanges\[0\]: .*valid CIDR/,
    ],
    [{ healthCheckNodePort: 30_000, ports: [port] }, /^spec.healthCheckNodePort: Invalid value/],
    [
      { clusterIPs: ['10.96.0.20'], ports: [port] },
      /^spec.clusterIPs: .*must be empty when `clusterIP` is not specified/,
    ],
    [
      { clusterIP: '10.96.0.20', clusterIPs: ['10.96.0.21'], ports: [port] },
      /first value must match `clusterIP`/,
    ],
    [{ clusterIP: 'x', ports: [port] }, /^spec.clusterIPs\[0\]: .*valid IP/],
    [
      { type: 'NodePort', clusterIP: 'None', ports: [port] },
      /may not be set to 'None' for NodePort services/,
    ],
    [{ type: 'ExternalName' }, /^spec.externalName: Required value/],
    [{ type: 'ExternalName', externalName: 'a..b' }, /^spec.externalName: Invalid value/],
    [{ selector: { a: 'b c' }, ports: [port] }, /^spec.selector: Invalid value/],
  ]
  for (const [spec, expected] of cases) {
    t.match(refused(() => dryRun('a', spec))[0], expected, JSON.stringify(spec))
  }
  t.match(
    refused(() => dryRun('9lives', { ports: [port] })),
    [/^metadata.name: .*DNS-1035/],
  )
  t.match(
    refused(() => dryRun('', { ports: [port] })),
    [/^metadata.name: Required value/],
  )
  t.equal(api.list({ apiVersion: 'v1', kind: 'Service' }).length, 0)
  t.end()
})
