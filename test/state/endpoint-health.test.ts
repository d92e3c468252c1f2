import t from 'tap'
import { checkAnnotations, checkText, endpointCheckOf } from '../../lib/state/endpoint-check.js'
import { annotationProblem } from '../../lib/state/annotations.js'
import { parseEndpointSlice } from '../../lib/state/parse-endpoint-slice.js'
import { parseService } from '../../lib/state/parse-service.js'
import { Tracker } from '../../lib/state/tracker.js'
import type { DesiredService } from '../../lib/state/desired-state.js'
import type { ServicePortName } from '../../lib/state/names.js'
import { endpoint, rawService, rawSlice, plainNode } from './objects.js'

const web: ServicePortName = { namespace: 'default', name: 'web', port: 'http', protocol: 'TCP' }
const at = (number: number) => `10.244.0.${number}:8080`

/** A Service that asks for checks, with these endpoints. A test says which of them fail. */
function checked(endpoints: readonly object[], options: object = {}, spec: object = {}) {
  const tracker = new Tracker(plainNode)
  const annotations = Object.fromEntries(
    Object.entries({ 'health-check': 'tcp', ...options }).map(([name, value]) => [
      `kube-proxy-ts/${name}`,
      value,
    ]),
  )
  const service = parseService(rawService({ annotations, spec }))
  const slice = parseEndpointSlice(rawSlice({ endpoints }))
  if (service.outcome !== 'accepted' || slice.outcome !== 'accepted') throw new Error('refused')
  tracker.upsertService(service.value)
  tracker.upsertEndpointSlice(slice.value)
  const get = (): DesiredService => {
    const found = tracker.take().states[0]?.services.get('default/web:http/TCP')
    if (!found) throw new Error('no service port')
    return found
  }
  const fail = (number: number, reason: string | undefined = 'dark') =>
    tracker.setEndpointHealth(web, at(number), reason)
  return { tracker, get, fail, warnings: service.warnings }
}

const keys = (list: readonly { readonly key: string }[] = []) => list.map(({ key }) => key)

t.test('an endpoint that fails leaves every list, is still checked, and comes back', async (t) => {
  const { get, fail, tracker } = checked([endpoint('10.244.0.1'), endpoint('10.244.0.2')])
  const before = get()
  t.same(before.health?.failing, [])
  fail(1)
  const after = get()
  for (const list of ['clusterEndpoints', 'reachableEndpoints', 'servingEndpoints'] as const) {
    t.same(keys(after[list]), [at(2)], list)
  }
  t.same(keys(after.health?.endpoints), [at(1), at(2)])
  t.same(after.health?.failing, [{ key: at(1), reason: 'dark' }])
  fail(1)
  t.equal(get(), after, 'the same again changes nothing')
  tracker.setEndpointHealth(web, at(1), undefined)
  t.same(get(), before)
})

t.test(
  'the last endpoints are kept, all of them, or removed where that is asked for',
  async (t) => {
    const endpoints = [endpoint('10.244.0.1'), endpoint('10.244.0.2')]
    const kept = checked(endpoints)
    const removed = checked(endpoints, { 'health-check-last': 'remove' })
    for (const { fail } of [kept, removed]) for (const number of [1, 2]) fail(number)
    t.same(keys(kept.get().clusterEndpoints), [at(1), at(2)])
    t.equal(kept.get().internal, 'cluster')
    t.same(keys(removed.get().clusterEndpoints), [])
    t.equal(removed.get().internal, 'reject')
    t.same(keys(removed.get().health?.endpoints), [at(1), at(2)], 'they can come back')
  },
)

t.test('a terminating endpoint that serves is used rather than ready ones that fail', async (t) => {
  const leaving = endpoint('10.244.0.2', { ready: false, serving: true, terminating: true })
  const { get, fail } = checked([endpoint('10.244.0.1'), leaving])
  fail(1)
  t.same(keys(get().clusterEndpoints), [at(2)])
})

t.test(
  'an endpoint that fails and then terminates still fails, until a check passes',
  async (t) => {
    const { tracker, get, fail } = checked([endpoint('10.244.0.1'), endpoint('10.244.0.2')])
    fail(1)
    fail(2)
    const leaving = endpoint('10.244.0.2', { ready: false, serving: true, terminating: true })
    const slice = parseEndpointSlice(rawSlice({ endpoints: [endpoint('10.244.0.1'), leaving] }))
    if (slice.outcome !== 'accepted') throw new Error('refused')
    tracker.upsertEndpointSlice(slice.value)
    t.same(keys(get().clusterEndpoints), [at(1)], 'the ready one is kept as the last')
    t.same(keys(get().health?.endpoints), [at(1), at(2)], 'both are checked')
    tracker.setEndpointHealth(web, at(2), undefined)
    t.same(keys(get().clusterEndpoints), [at(2)])
    t.same(keys(get().health?.endpoints), [at(1)])
  },
)

t.test('policy Local: the last local endpoint is kept, but load balancers are told', async (t) => {
  const { get, fail } = checked(
    [endpoint('10.244.0.1', { node: 'here' }), endpoint('10.244.0.2')],
    {},
    {
      type: 'NodePort',
      externalTrafficPolicy: 'Local',
      ports: [{ name: 'http', port: 80, nodePort: 30080 }],
    },
  )
  t.same(get().readyLocalAddresses, ['10.244.0.1'])
  fail(1)
  const { localEndpoints, clusterEndpoints, servingEndpoints, readyLocalAddresses, external } =
    get()
  t.same(keys(localEndpoints), [at(1)])
  t.same(keys(clusterEndpoints), [at(2)])
  t.same(keys(servingEndpoints), [at(1), at(2)], 'flows to what is used are kept')
  t.same(readyLocalAddresses, [])
  t.equal(external, 'local')
})

t.test('hints: when those of this zone fail others are used, and both are checked', async (t) => {
  const { tracker, get, fail } = checked([
    endpoint('10.244.0.1', { zones: ['a'] }),
    endpoint('10.244.0.2', { zones: ['b'] }),
  ])
  const node = {
    name: 'here',
    ips: [],
    podCidrs: [],
    isBeingDeleted: false,
    isTaintedForDeletion: false,
  }
  tracker.setNode({ ...node, zone: 'a' })
  t.same(keys(get().health?.endpoints), [at(1)])
  fail(1)
  t.same(keys(get().clusterEndpoints), [at(2)])
  t.same(keys(get().health?.endpoints).sort(), [at(1), at(2)])
})

t.test('without the annotation nothing is checked and nothing left out', async (t) => {
  const { get, fail } = checked([endpoint('10.244.0.1'), endpoint('10.244.0.2')], {
    'health-check': 'ping',
  })
  fail(1)
  t.equal(get().health, undefined)
  t.same(keys(get().clusterEndpoints), [at(1), at(2)])
})

t.test(
  'annotations are read within bounds; what makes no sense is named with its words',
  async (t) => {
    const read = (check: string, more: object = {}) =>
      endpointCheckOf({ 'health-check': check, ...more }, 'TCP')
    t.match(read('tcp'), {
      kind: 'tcp',
      port: undefined,
      intervalMs: 10_000,
      timeoutMs: 1000,
      rise: 2,
      fall: 3,
    })
    t.match(read('http:/a:b?c=%20:8081'), { kind: 'http', path: '/a:b?c=%20', port: 8081 })
    t.match(read('grpc:9090', { 'health-check-interval': '700ms' }), { port: 9090, timeoutMs: 700 })
    t.match(read('tcp', { 'health-check-rise': '10', 'health-check-fall': '11' }), {
      rise: 10,
      fall: 3,
    })
    const wrong = [
      ...[
        '',
        'TCP',
        'tcp:0',
        'tcp:65536',
        'http',
        'http:x',
        'http:/a b',
        'http:/\r\nX: y',
        'http:/\u0000',
      ],
      ...['http:/é', 'grpc:', 'tcp:80\n', `http:/${'a'.repeat(600)}`],
    ]
    for (const text of wrong) t.equal(read(text), undefined, JSON.stringify(text))
    const problems = checkAnnotations.flatMap(
      (each) => annotationProblem({ [each.name]: '\u0007 \u202e' }, each) ?? [],
    )
    t.equal(problems.length, checkAnnotations.length)
    for (const problem of problems) {
      t.match(problem, /has no effect; valid: \S/)

      t.notMatch(problem, /[\u0007\u202e]/)
    }
    t.match(checked([], { 'health-check': 'icmp' }).warnings, [
      /health-check: "icmp" has no effect; valid: tcp/,
    ])
    t.equal(
      endpointCheckOf({ 'health-check': 'tcp' }, 'UDP'),
      undefined,
      'UDP says nothing by itself',
    )
    const dns = endpointCheckOf({ 'health-check': 'http:/ready:8181' }, 'UDP')
    t.equal(dns && checkText(dns), 'http:/ready at port 8181')
  },
)
