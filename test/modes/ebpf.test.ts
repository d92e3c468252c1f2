import fc from 'fast-check'
import { cleanupSockets } from '../../lib/modes/ebpf/cleanup.js'
import t from 'tap'
import {
  memberKey,
  readServiceWord,
  serviceWord,
  writeBackend,
  targetId,
} from '../../lib/modes/ebpf/layout.js'
import { configWith } from '../../lib/config/load.js'
import { explainPacket } from '../../lib/inspect/explain/explain.js'
import { understand } from '../../lib/inspect/explain/question.js'
import { OpenCounts } from '../../lib/modes/ebpf/open-counts.js'
import { Places, quarantineMs } from '../../lib/modes/ebpf/places.js'
import { frontendId, socketPlanner, type SocketPlan } from '../../lib/modes/ebpf/plan.js'
import { renderSocketChanges, renderSockets } from '../../lib/modes/ebpf/render.js'
import { lookUntil } from '../../lib/modes/ebpf/sockets.js'
import { sizesFor } from '../../lib/modes/ebpf/tables.js'
import { contextOf } from '../support/mode-context.js'
import { service, state, states } from '../support/states.js'
import { walkOf } from '../support/walks.js'

const plan = socketPlanner({ localhostNodePorts: true })

/** Which endpoints a frontend of a plan leads to, or its verdict. */
function leadsTo({ frontends, parts }: SocketPlan, id: string): readonly string[] | string {
  const [first] = frontends.get(id) ?? []
  const lists = first ? (parts.get(first.owner)?.targets ?? []) : []
  const list = lists.find(({ id: each }) => each === first?.targets)
  if (!list) return 'nothing'
  return list.verdict === 'balance' ? list.endpoints.map(({ key }) => key) : list.verdict
}

const at = (address: string | undefined, port: number, protocol: 'TCP' | 'UDP' = 'TCP') =>
  frontendId({ address, port, protocol })

t.test('every address of a Service leads to its endpoints', async (t) => {
  const web = service({
    nodePort: 30080,
    externalIps: ['203.0.113.1'],
    loadBalancerIps: ['203.0.113.2'],
  })
  const planned = plan(state([web]))
  const both = ['10.180.0.1:8080', '10.180.0.2:8080']
  for (const id of [
    at('10.96.0.10', 80),
    at('203.0.113.1', 80),
    at('203.0.113.2', 80),
    at(undefined, 30080),
  ]) {
    t.same(leadsTo(planned, id), both, id)
  }
  t.equal(planned.parts.get('default/web:http/TCP')?.targets.length, 1, 'one list serves all')
})

t.test('S19: without endpoints connections are refused', async (t) => {
  const planned = plan(state([service({ nodePort: 30080, endpoints: 0 })]))
  t.equal(leadsTo(planned, at('10.96.0.10', 80)), 'refuse')
  t.equal(leadsTo(planned, at(undefined, 30080)), 'refuse')
})

t.test('S17: what a policy drops is left to packets', async (t) => {
  const elsewhere = [{ ip: '10.180.0.1', local: false }]
  const planned = plan(state([service({ internalPolicyLocal: true, endpoints: elsewhere })]))
  t.equal(leadsTo(planned, at('10.96.0.10', 80)), 'leave')
})

t.test('S18: a policy Local does not bind the sockets of the node', async (t) => {
  const endpoints = [{ ip: '10.180.0.1' }, { ip: '10.180.0.2', local: false }]
  const web = service({ nodePort: 30080, externalPolicyLocal: true, endpoints })
  t.same(leadsTo(plan(state([web])), at(undefined, 30080)), ['10.180.0.1:8080', '10.180.0.2:8080'])
})

t.test('an internal policy Local has a list of its own', async (t) => {
  const endpoints = [{ ip: '10.180.0.1' }, { ip: '10.180.0.2', local: false }]
  const planned = plan(state([service({ nodePort: 30080, internalPolicyLocal: true, endpoints })]))
  t.same(leadsTo(planned, at('10.96.0.10', 80)), ['10.180.0.1:8080'])
  t.same(leadsTo(planned, at(undefined, 30080)), ['10.180.0.1:8080', '10.180.0.2:8080'])
})

t.test('S12: addresses that only some sources may use are left to packets', async (t) => {
  const web = service({ loadBalancerIps: ['203.0.113.2'], sourceRanges: ['192.0.2.0/24'] })
  t.equal(leadsTo(plan(state([web])), at('203.0.113.2', 80)), 'leave')
})

t.test('SCTP and Services with sockets "off" have no part in the maps', async (t) => {
  for (const spec of [service({ protocol: 'SCTP' }), service({ options: { sockets: 'off' } })]) {
    t.equal(plan(state([spec])).frontends.size, 0)
  }
})

t.test('only UDP and session affinity make endpoints be looked up again', async (t) => {
  const isRemembered = (spec: Parameters<typeof service>[0]) =>
    [...plan(state([service(spec)])).parts.values()][0]?.targets[0]?.isRemembered
  t.equal(isRemembered({}), false)
  t.equal(isRemembered({ protocol: 'UDP' }), true)
  t.equal(isRemembered({ affinitySeconds: 30 }), true)
})

t.test('E21: UDP clients stay with an endpoint that terminates and still serves', async (t) => {
  const leaving = { ip: '10.180.0.1', ready: false, serving: true, terminating: true }
  const listOf = (protocol: 'TCP' | 'UDP') => {
    const spec = service({ protocol, endpoints: [leaving, '10.180.0.2'] })
    return [...plan(state([spec])).parts.values()][0]?.targets[0]
  }
  const keys = (endpoints: readonly { readonly key: string }[] = []) =>
    endpoints.map(({ key }) => key)
  t.same(keys(listOf('UDP')?.endpoints), ['10.180.0.2:8080'], 'it gets nobody new')
  t.same(keys(listOf('UDP')?.kept), ['10.180.0.1:8080'])
  t.same(keys(listOf('TCP')?.kept), [])
})

t.test('UDP clients stay with an endpoint that serves and is not drawn any more', async (t) => {
  const kept = (balance: string, ...weights: readonly number[]) => {
    const endpoints = weights.map((weight, index) => ({ ip: `10.180.0.${index + 1}`, weight }))
    const spec = service({ protocol: 'UDP', options: { balance }, endpoints })
    const [part] = plan(state([spec])).parts.values()
    return part?.targets[0]?.kept.map(({ ip }) => ip)
  }
  t.same(kept('weighted', 1, 0), ['10.180.0.2'], 'weight 0: nobody new, and nobody is cut')
  t.same(kept('first', 2, 1), ['10.180.0.2'])
  t.same(kept('weighted', 1, 2), [])
})

t.test('the first of two Services with one address gets it, and the other after it', async (t) => {
  const cluster = states()
  const planner = socketPlanner({ localhostNodePorts: true })
  const shared = { externalIps: ['203.0.113.1'] }
  const [a, b] = [
    service({ name: 'a', clusterIp: '10.96.0.1', endpoints: ['10.180.0.1'], ...shared }),
    service({ name: 'b', clusterIp: '10.96.0.2', endpoints: ['10.180.0.2'], ...shared }),
  ]
  const id = at('203.0.113.1', 80)
  t.same(leadsTo(planner(cluster.put(b).take()), id), ['10.180.0.2:8080'])
  t.same(leadsTo(planner(cluster.put(a).take()), id), ['10.180.0.1:8080'])
  t.same(leadsTo(planner(cluster.remove(a).take()), id), ['10.180.0.2:8080'])
})

t.test('S19: of two Services at one address the one with endpoints gets the calls', async (t) => {
  const shared = { externalIps: ['203.0.113.1'], protocol: 'UDP' } as const
  const idle = service({ ...shared, name: 'idle', clusterIp: '10.96.0.11', endpoints: 0 })
  const busy = service({ ...shared, name: 'idle', clusterIp: '10.96.0.11', endpoints: 1 })
  const cluster = states().put(service(shared)).put(idle)
  const address = at('203.0.113.1', 80, 'UDP')
  const both = ['10.180.0.1:8080', '10.180.0.2:8080']
  t.same(leadsTo(plan(cluster.take()), address), both)
  cluster.put(busy)
  t.same(leadsTo(plan(cluster.take()), address), ['10.180.0.1:8080'], 'the smaller name is first')
  cluster.put(idle)
  t.same(leadsTo(plan(cluster.take()), address), both, 'it has lost its endpoints again')
})

t.test(
  'S19: a Service without endpoints refuses nobody who asks for one that is left to packets',
  async (t) => {
    const shared = { externalIps: ['203.0.113.1'], nodePort: 30080 }
    const idle = service({ ...shared, name: 'a', clusterIp: '10.96.0.11', endpoints: 0 })
    const balancer = { loadBalancerIps: ['203.0.113.1'], sourceRanges: ['192.0.2.0/24'] }
    for (const left of [
      { ...shared, options: { sockets: 'off' } },
      { ...shared, options: { balance: 'source-hash' } },
      { ...shared, endpoints: ['203.0.113.1'], port: 8080 },
      { ...balancer, externalIps: [] },
    ]) {
      const planner = socketPlanner({ localhostNodePorts: true })
      const cluster = states().put(idle)
      const address = at('203.0.113.1', 80)
      t.equal(leadsTo(planner(cluster.take()), address), 'refuse')
      const other = 'port' in left ? { ...idle, port: 8080 } : idle
      cluster.put(other, service({ ...left, name: 'b' }))
      const where = 'port' in left ? at('203.0.113.1', 8080) : address
      const planned = planner(cluster.take())
      t.equal(leadsTo(planned, where), 'leave')
      if ('nodePort' in left) t.equal(leadsTo(planned, at(undefined, 30080)), 'leave')
      cluster.put(service({ name: 'c', clusterIp: '10.96.0.12' }))
      t.same(planner(cluster.take()).frontends.since(planned.frontends).changed, [])
      t.same(planner(cluster.take()).parts.since(planned.parts).changed, [], 'nothing is written')
      cluster.remove(service({ ...left, name: 'b' }))
      t.equal(leadsTo(planner(cluster.take()), where), 'refuse')
    }
  },
)

t.test(
  'an endpoint at the external address of a Service leaves its Service to packets',
  async (t) => {
    const cluster = states()
    const planner = socketPlanner({ localhostNodePorts: true })
    const web = service({ endpoints: ['192.0.2.1'] })
    const rest = { name: 'other', clusterIp: '10.96.0.2', port: 8080 }
    const lead = () => leadsTo(planner(cluster.take()), at('10.96.0.10', 80))
    cluster.put(web)
    t.same(lead(), ['192.0.2.1:8080'])
    cluster.put(service({ ...rest, loadBalancerIps: ['192.0.2.1'] }))
    t.equal(lead(), 'nothing', 'rules would translate it again')
    cluster.put(service({ ...web, endpoints: ['10.180.0.1'] }))
    t.same(lead(), ['10.180.0.1:8080'])
    cluster.put(service({ ...web, endpoints: ['192.0.2.1'] }))
    t.equal(lead(), 'nothing')
    cluster.remove(web)
    t.equal(lead(), 'nothing')
    cluster.put(web, service({ ...rest, protocol: 'UDP', externalIps: ['192.0.2.1'] }))
    cluster.remove(service(rest))
    t.same(lead(), ['192.0.2.1:8080'])
  },
)

t.test('an endpoint at a node port of this node leaves its Service to packets', async (t) => {
  const cluster = states()
  const planner = socketPlanner({ localhostNodePorts: true })
  const lead = () => leadsTo(planner(cluster.take()), at('10.96.0.10', 80))
  const other = service({ name: 'other', clusterIp: '10.96.0.2', nodePort: 30080 })
  const at30080 = (ip: string) => service({ endpoints: [{ ip, port: 30080 }] })
  cluster.put(at30080('192.0.2.1'))
  t.same(lead(), ['192.0.2.1:30080'])
  cluster.put(other)
  t.equal(lead(), 'nothing', 'rules would translate it again')
  cluster.put(at30080('192.0.2.2'))
  t.same(lead(), ['192.0.2.2:30080'], 'another node has its own rules')
  cluster.put(at30080('192.0.2.1')).remove(other)
  t.same(lead(), ['192.0.2.1:30080'])
})

t.test('an unchanged Service keeps its part by reference', async (t) => {
  const cluster = states().put(service({ name: 'a', clusterIp: '10.96.0.1' }))
  const planner = socketPlanner({ localhostNodePorts: true })
  const before = planner(cluster.take())
  const after = planner(cluster.put(service({ name: 'b', clusterIp: '10.96.0.2' })).take())
  const changes = after.parts.since(before.parts)
  t.same([changes.added.length, changes.changed.length, changes.removed.length], [1, 0, 0])
})

t.test(
  'loopback serves node ports to the host only, and not where it is switched off',
  async (t) => {
    const asked = (...nodePortAddresses: string[]) =>
      states('IPv4', { nodePortAddresses })
        .put(service({ nodePort: 30080 }))
        .take()
    const cluster = asked('all', 'localhost')
    t.same(plan(cluster).nodeAddresses, [
      { address: '127.0.0.1', hostOnly: true },
      { address: '192.0.2.1', hostOnly: false },
    ])
    const without = socketPlanner({ localhostNodePorts: false })(cluster)
    t.same(without.nodeAddresses, [{ address: '192.0.2.1', hostOnly: false }])
    t.same(plan(asked('all')).nodeAddresses, [{ address: '192.0.2.1', hostOnly: false }])
  },
)

t.test('which datagrams are translated at the socket is explained', async (t) => {
  const spec = { nodePort: 30053, protocol: 'UDP', externalIps: ['203.0.113.1'] } as const
  const cluster = states('IPv4', { nodePortAddresses: ['all', 'localhost'] })
    .put(service(spec))
    .take()
  const whyTo = (target: string) => {
    const question = understand({ target, from: 'node', protocol: 'UDP' }, [cluster])
    if (typeof question === 'string') throw new Error(question)
    return explainPacket('ebpf', cluster, configWith({}), question.packet)[0]?.hops[0]?.why
  }
  const both = /^translated at connect\(\) or sendto\(\):[^;]*NAT$/
  const onlyConnected = /^translated at connect\(\):.*; datagrams by sendto\(\) are left to rules$/
  t.match(whyTo('10.96.0.10:80'), both)
  t.match(whyTo('127.0.0.1:30053'), both)
  t.match(whyTo('203.0.113.1:80'), onlyConnected)
  t.match(whyTo('192.0.2.1:30053'), onlyConnected)
})

t.test('ebpf.sockets=node: what a pod sends is explained as packets', async (t) => {
  const cluster = state([service({ nodePort: 30080, endpoints: 1 })])
  const walk = walkOf('ebpf', cluster, { 'ebpf.sockets': 'node' })
  t.equal(walk('pod', '192.0.2.1:30080'), '10.180.0.1:8080 masqueraded')
  t.equal(walk('node', '192.0.2.1:30080'), '10.180.0.1:8080')
  t.equal(walkOf('ebpf', cluster)('pod', '192.0.2.1:30080'), '10.180.0.1:8080')
})

t.test('a plan is printed line by line, and so is what changes', async (t) => {
  const cluster = states().put(service({ endpoints: 1, affinitySeconds: 60 }))
  const planner = socketPlanner({ localhostNodePorts: true })
  const before = planner(cluster.take())
  t.equal(
    renderSockets(before),
    [
      'sockets IPv4: frontend 10.96.0.10:80 TCP -> default/web:http/TCP',
      'sockets IPv4: node address 192.0.2.1',
      'sockets IPv4: service default/web:http/TCP: one of 10.180.0.1:8080, the same for 60 s',
      '',
    ].join('\n'),
  )
  const after = planner(cluster.put(service({ endpoints: 0, affinitySeconds: 60 })).take())
  t.equal(
    renderSocketChanges(after, before),
    [
      '- sockets IPv4: service default/web:http/TCP: one of 10.180.0.1:8080, the same for 60 s',
      '+ sockets IPv4: service default/web:http/TCP: connections are refused',
      '',
    ].join('\n'),
  )
})

t.test('the word of a service holds what was put into it', async (t) => {
  const numbers = fc.record({
    first: fc.nat(2 ** 24 - 1),
    count: fc.nat(0xffff),
    tag: fc.nat(0xffff),
    refuses: fc.boolean(),
    draw: fc.constantFrom('chance' as const, 'turn' as const, 'fewest' as const),
  })
  fc.assert(
    fc.property(numbers, (word) => {
      const made = serviceWord(word)
      t.same(readServiceWord(made), word)
      return made < 2n ** 64n
    }),
    { numRuns: 100 },
  )
})

t.test('addresses and ports are in network order, tags in that of the machine', async (t) => {
  const bytes = Buffer.alloc(24)
  writeBackend(bytes, 'IPv6', { ip: '2001:db8::1', port: 0x1f90 }, 0x0102)
  t.equal(bytes.toString('hex'), '20010db80000000000000000000000011f90020100000000')
  writeBackend(bytes, 'IPv4', { ip: '192.0.2.1', port: 0x1f90 }, 0x0102)
  t.equal(bytes.readBigUInt64LE(0).toString(16), '102901f010200c0')
  const target = { ip: '192.0.2.1', port: 80 }
  t.equal(memberKey('IPv4', 7, target).toString('hex'), '07000000c000020100500000')
})

t.test('places that were given back rest before they are used again', async (t) => {
  let now = 0
  const places = new Places(8, () => now)
  t.same([places.take(3), places.take(4), places.take(1)], [0, 4, undefined])
  places.giveBack(0, 3)
  t.equal(places.take(4), undefined, 'a program may still be on its way there')
  now = quarantineMs
  t.equal(places.take(3), 0, 'sizes are rounded, so that what was given back fits')
})

t.test('tables have room for twice what a plan needs', async (t) => {
  const specs = Array.from({ length: 100 }, (_, index) =>
    service({ name: `web-${index}`, clusterIp: `10.96.1.${index}`, endpoints: 3 }),
  )
  const sizes = sizesFor(plan(state(specs)))
  t.same(sizes, { frontends: 256, services: 256, backends: 1024, members: 64 })
})

t.test('the number of a name is the same in every run', async (t) => {
  t.equal(targetId('default/web:http/TCP'), 3_186_679_515)
  t.not(targetId('a'), targetId('b'))
})

t.test('kube-proxy-ts/balance: what programs cannot draw is left to packets', async (t) => {
  const frontend = at('10.96.0.10', 80)
  const endpoints = [
    { ip: '10.180.0.1', weight: 1 },
    { ip: '10.180.0.2', weight: 2 },
    { ip: '10.180.0.3', weight: 0 },
  ]
  const of = (balance: string) =>
    leadsTo(plan(state([service({ options: { balance }, nodePort: 30080, endpoints })])), frontend)
  const [first, second, third] = endpoints.map(({ ip }) => `${ip}:8080`)
  t.same(of('random'), [first, second, third])
  t.same(of('weighted'), [first, second, second], 'as often as its weight, and 0 never')
  t.same(of('first'), [second])
  t.same(of('round-robin'), [first, second, third])
  t.same(of('least-connections'), [first, second, third])
  for (const word of ['source-hash', 'maglev']) t.equal(of(word), 'nothing', word)
})

t.test('how an endpoint is chosen is printed and explained', async (t) => {
  const textOf = (balance: string) =>
    renderSockets(plan(state([service({ options: { balance } })])))
      .split('\n')
      .find((line) => line.includes('service '))
  t.match(textOf('random'), /one of 10.180.0.1:8080, 10.180.0.2:8080$/)
  t.match(textOf('round-robin'), /10.180.0.2:8080 in turn$/)
  t.match(textOf('least-connections'), /10.180.0.2:8080 by open connections$/)
})

t.test('counts of endpoints that are gone are forgotten when nothing is open there', async (t) => {
  const cluster = states()
  const planner = socketPlanner({ localhostNodePorts: true })
  const web = (endpoints: readonly string[]) =>
    service({ options: { balance: 'least-connections' }, endpoints })
  let current = planner(cluster.put(web(['10.180.0.1', '10.180.0.2', '10.180.0.3'])).take())
  const counts = new Map([1, 2, 3].map((last) => [`0ab4000${last}`, 0n]))
  const keyOf = (address: string) => Buffer.from(`${address}${'0'.repeat(24)}1f900406`, 'hex')
  const map = {
    entries: () =>
      [...counts].map(([address, count]) => {
        const value = Buffer.alloc(8)
        value.writeBigInt64LE(count)
        return [keyOf(address), value] as const
      }),
    delete: (key: Uint8Array) => counts.delete(Buffer.from(key).toString('hex', 0, 4)),
  }
  const open = new OpenCounts({ map: () => map, plans: () => [current] })
  open.look()
  open.look()
  t.equal(counts.size, 3, 'all are in the plan')
  counts.set('0ab40002', 1n)
  current = planner(cluster.put(web(['10.180.0.1'])).take())
  open.look()
  t.equal(counts.size, 3, 'a program may be on its way')
  const ending = new AbortController()
  const looking = lookUntil(ending.signal, open, contextOf().context.log)
  ending.abort()
  await looking
  t.equal(counts.size, 3, 'also if the mode ends soon after')
  open.look()
  t.same([...counts.keys()], ['0ab40001', '0ab40002'], 'nothing is open at the third')
  counts.set('0ab40002', 0n)
  open.look()
  open.look()
  t.same([...counts.keys()], ['0ab40001'])
})

t.test('a daemon does not tell of pins that others need, a cleanup does', async (t) => {
  const others = t.testdir({ 'kube-proxy-ts': { 'netns-0': {} } })
  const told: string[] = []
  const log = { ...contextOf().context.log, info: (_: object, text: string) => told.push(text) }
  await cleanupSockets({ log }, [others], 'debug')
  t.same(told, [])
  await cleanupSockets({ log }, [others])
  t.match(told, [/pins of other network namespaces stay/])
})
