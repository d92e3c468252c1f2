import t from 'tap'
import { openFilesLimit } from '../../../lib/kernel/this-process.js'
import fc from 'fast-check'
import { AffinityTable } from '../../../lib/modes/userspace/datapath/affinity.js'
import { Balancer } from '../../../lib/modes/userspace/datapath/balancer.js'
import {
  DescriptorBudget,
  descriptorLimit,
} from '../../../lib/modes/userspace/datapath/descriptors.js'
import { definition } from '../../../lib/modes/userspace/index.js'
import { PassiveHealth } from '../../../lib/modes/userspace/datapath/passive-health.js'
import { configWith } from '../../../lib/config/load.js'
import { userspacePlanner } from '../../../lib/modes/userspace/plan.js'
import { renderPlan } from '../../../lib/modes/userspace/render.js'
import { PortAllocator } from '../../../lib/modes/userspace/listeners/port-allocator.js'
import { TrafficMeter } from '../../../lib/modes/userspace/listeners/traffic-meter.js'
import { service, state, states, testSettings } from '../../support/states.js'
import { walkOf } from '../../support/walks.js'
import { endpointChanges, type Target } from '../../../lib/modes/userspace/datapath/data-path.js'
import type { UserspaceSettings } from '../../../lib/modes/userspace/settings.js'

const nowhere = {
  count: () => undefined,
  gauge: () => undefined,
  observe: () => undefined,
  forget: () => undefined,
}
const target = (name: string): Target => ({ key: name, ip: '10.0.0.1', port: 80 })
const targets = (...names: string[]) => names.map(target)

function balancer(
  names: readonly string[],
  options: { affinityMs?: number; passiveHealth?: boolean } = {},
) {
  const clock = { now: 0 }
  const made = new Balancer(
    { now: () => clock.now, random: () => 0.999, passiveHealth: options.passiveHealth ?? false },
    { endpoints: names.map(target), affinityMs: options.affinityMs },
  )
  let endpoints = names.map(target)
  return {
    clock,
    balancer: made,
    /** Gives the balancer only the differences, as the listeners and their worker do. */
    change: (names: readonly string[], affinityMs?: number) => {
      const after = { endpoints: names.map(target), servingKeys: [], affinityMs }
      made.update(endpointChanges(endpoints, after))
      endpoints = after.endpoints
    },
    pick: (client = '', tried: readonly Target[] = []) => made.pick(client, tried)?.key,
  }
}

t.test('endpoints are used round robin', async (t) => {
  t.test('US60: endpoints are used in turn, and without endpoints there is none', async (t) => {
    const { pick } = balancer(['a', 'b', 'c'])
    t.same([pick(), pick(), pick(), pick()], ['a', 'b', 'c', 'a'])
    t.equal(balancer([]).pick(), undefined)
  })

  t.test('US60: the turn goes on when endpoints change', async (t) => {
    const { change, pick } = balancer(['a', 'b', 'c'])
    t.same([pick(), pick()], ['a', 'b'])
    change(['a', 'c', 'd'])
    t.same([pick(), pick(), pick()], ['c', 'd', 'a'])
    change(['a', 'c', 'd'])
    t.same([pick(), pick()], ['c', 'd'], 'an equal list changes nothing')
  })

  t.test('every endpoint gets its share, whatever changes', async (t) => {
    const names = fc.uniqueArray(fc.constantFrom('a', 'b', 'c', 'd', 'e', 'f'), { minLength: 1 })
    fc.assert(
      fc.property(fc.array(names, { minLength: 1, maxLength: 8 }), fc.nat(20), (lists, picks) => {
        const { change, pick } = balancer([])
        for (const list of lists) {
          change(list)
          const counts = new Map<string, number>(list.map((name) => [name, 0]))
          for (let index = 0; index < list.length * picks; index++) {
            const name = pick() ?? ''
            counts.set(name, (counts.get(name) ?? 0) + 1)
          }
          for (const [name, count] of counts) {
            if (count !== picks) throw new Error(`${name} got ${count} of ${picks}`)
          }
        }
      }),
    )
    t.pass('equal shares')
  })

  t.test('US40: a second try uses another endpoint, if there is one', async (t) => {
    const { pick } = balancer(['a', 'b'])
    t.equal(pick('', targets()), 'a')
    const [a, b] = ['a', 'b'].map(target)
    const { balancer: made } = balancer(['a', 'b'])
    const first = made.pick('')!
    t.equal(made.pick('', [first])?.key, 'b')
    t.ok(a && b && made.pick('', [first, made.pick('', [first])!]), 'rather twice than not at all')
  })

  t.test('an endpoint that leads back here does not stand for those that were tried', async (t) => {
    const ownFrontends = { has: (_: string, { key }: { key: string }) => key === 'back' }
    const endpoints = targets('back', 'a')
    const deps = { now: () => 0, random: () => 0.999, passiveHealth: false, ownFrontends }
    const made = new Balancer(deps, { endpoints, affinityMs: undefined })
    const picked = [made.pick(''), made.pick('', endpoints), made.pick('', endpoints)]
    t.same(
      picked.map((each) => each?.key),
      ['a', 'a', 'a'],
    )
    const alone = new Balancer(deps, { endpoints: targets('back'), affinityMs: undefined })
    t.equal(alone.pick(''), undefined)
  })
})

t.test('affinity keeps a client at its endpoint', async (t) => {
  t.test('US62: every use renews the record, and it ends when its time is over', async (t) => {
    const { clock, pick } = balancer(['a', 'b', 'c'], { affinityMs: 1000 })
    t.equal(pick('x'), 'a')
    clock.now = 999
    t.equal(pick('x'), 'a')
    clock.now = 1998
    t.equal(pick('x'), 'a', 'renewed by the last use')
    t.equal(pick('y'), 'b', 'others have their own')
    clock.now = 2998
    t.equal(pick('x'), 'c')
  })

  t.test('US41: a failed dial moves the client permanently', async (t) => {
    const { balancer: made, pick } = balancer(['a', 'b', 'c'], { affinityMs: 1000 })
    const first = made.pick('x')!
    t.equal(pick('x', [first]), 'b')
    t.equal(pick('x'), 'b')
  })

  t.test('US63, US64: the time-out of the Service applies at once', async (t) => {
    const { change, clock, pick } = balancer(['a', 'b'], { affinityMs: 1000 })
    t.equal(pick('x'), 'a')
    change(['a', 'b'], 50)
    clock.now = 49
    t.equal(pick('x'), 'a', 'the record is kept')
    clock.now = 99
    t.equal(pick('x'), 'b')
  })

  t.test('US65, US68: records end with their endpoint, or with affinity', async (t) => {
    const { balancer: made, change, pick } = balancer(['a', 'b'], { affinityMs: 1000 })
    t.equal(pick('x'), 'a')
    change(['b'], 1000)
    change(['b', 'a'], 1000)
    t.equal(pick('x'), 'b')
    change(['b', 'a'])
    t.notOk(made.usesClient)
    change(['b', 'a'], 1000)
    t.equal(pick('x'), 'a', 'nothing comes back to life')
  })

  t.test('the number of records is bounded, and the latest stay', async (t) => {
    const table = new AffinityTable(1e9)
    for (let client = 0; client < 140_000; client++) table.remember(String(client), 'a', client)
    t.equal(table.size, 131_072)
    t.equal(table.find('139999', 140_000), 'a')
    t.equal(table.find('0', 140_000), undefined)
  })
})

t.test('passive health avoids endpoints that failed', async (t) => {
  t.test('a failed endpoint comes last, longer after each failure', async (t) => {
    const { balancer: made, clock, pick } = balancer(['a', 'b'], { passiveHealth: true })
    const a = made.pick('')!
    made.dialFailed(a)
    t.same([pick(), pick(), pick()], ['b', 'b', 'b'])
    clock.now = 1000
    t.equal(pick(), 'a', 'its time is over: one connection tries')
    t.same([pick(), pick()], ['b', 'b'], 'the others wait for that one')
    made.dialFailed(a)
    clock.now = 2999
    t.same([pick(), pick()], ['b', 'b'], 'twice as long')
    clock.now = 3000
    t.equal(pick(), 'a')
    made.dialSucceeded(a)
    t.same([pick(), pick(), pick()], ['b', 'a', 'b'])
  })

  t.test('all endpoints are tried if all have failed', async (t) => {
    const { balancer: made, pick } = balancer(['a', 'b'], { passiveHealth: true })
    made.dialFailed(made.pick('')!)
    made.dialFailed(made.pick('')!)
    t.same([pick(), pick(), pick()].toSorted(), ['a', 'a', 'b'])
  })

  t.test('the penalty has a cap', async (t) => {
    const health = new PassiveHealth()
    for (let now = 0; now < 40; now++) health.failed('a', now * 100_000)
    t.ok(health.isSuspect('a', 3_900_000 + 29_999))
    t.notOk(health.isSuspect('a', 3_900_000 + 30_000))
  })
})

const plans = (settings: Partial<UserspaceSettings> = {}) =>
  userspacePlanner({ ...testSettings, ...settings })
const planner = (values: Readonly<Record<string, unknown>> = {}) =>
  definition.planner(configWith(values))
/**
 * Where packets end under the plan of these Services. Endpoints see an address of this node, as in
 * the original design.
 */
const walk = (specs: Parameters<typeof state>[0]) =>
  walkOf('userspace', state(specs), { 'userspace.sourceAddress': 'hide' })

/** The rules of one chain, as text. */
const rulesOf = (
  specs: Parameters<typeof state>[0],
  chain: string,
  values: Readonly<Record<string, unknown>> = {},
) => {
  const made = planner(values)
  return made
    .render(made.plan(state(specs)))
    .split('\n')
    .filter((line) => line.startsWith(`-A ${chain} `))
    .map((line) => line.slice(chain.length + 4))
}

t.test('the plan of userspace mode', async (t) => {
  t.test('US06, US07, US08: pods and the node are sent to the address of the node', async (t) => {
    const one = service({ endpoints: 1 })
    for (const from of ['pod', 'node', 'outside'])
      t.equal(walk([one])(from, '10.96.0.10:80'), '10.180.0.1:8080 masqueraded', from)
    t.equal(walk([one])('pod', '10.96.0.10:81'), 'untouched')
    const bound = { bindAddress: '192.0.2.7' }
    for (const chain of ['KUBE-PORTALS-CONTAINER', 'KUBE-PORTALS-HOST']) {
      t.match(rulesOf([one], chain), [/-j DNAT --to-destination 192\.0\.2\.1:/], chain)
      t.match(rulesOf([one], chain, bound), [/-j DNAT --to-destination 192\.0\.2\.7:/], chain)
    }
  })

  t.test(
    'US07: UDP listens on the address of the node, so that answers come from it',
    async (t) => {
      const udp = service({ protocol: 'UDP', nodePort: 30_080 })
      for (const chain of [
        'PORTALS-CONTAINER',
        'PORTALS-HOST',
        'NODEPORT-CONTAINER',
        'NODEPORT-HOST',
      ]) {
        t.match(rulesOf([udp], `KUBE-${chain}`), [
          /-j DNAT --to-destination 192\.0\.2\.1:PROXY-PORT/,
        ])
      }
      const [plan] = plans()(state([udp])).services.values()
      t.match(plan?.listeners, [{ spec: { address: '192.0.2.1' } }])
    },
  )

  t.test(
    'S20, US04: a health-check node port is reached through a closed INPUT chain',
    async (t) => {
      const balanced = service({
        loadBalancerIps: ['203.0.113.10'],
        nodePort: 30_080,
        externalPolicyLocal: true,
        healthCheckNodePort: 32_000,
      })
      t.equal(walk([balanced])('outside', '192.0.2.1:32000'), 'let in')
    },
  )

  t.test('render shows addresses instead of rules if there are no rules', async (t) => {
    const made = planner({ 'userspace.portals': 'addresses' })
    const text = made.render(made.plan(state([service()])))
    t.match(text, /^address 10\.96\.0\.10 on this machine\nlisten TCP 10\.96\.0\.10:80 for/)
    t.notMatch(text, /KUBE-/)
    const auto = { ...testSettings, portals: 'auto' } as const
    const withoutRules = userspacePlanner(auto, new Set(['IPv4']))(state([service()]))
    t.equal(renderPlan(withoutRules, auto), text, 'also where the node decides it')
  })

  t.test('US30: a loopback address is refused as bind address', async (t) => {
    for (const bindAddress of ['127.0.0.1', '::1']) {
      const withRules = { bindAddress, 'userspace.portals': 'iptables' }
      t.throws(() => planner(withRules), { name: 'ConfigError' })
      const settled = await definition.settle?.(configWith({ bindAddress }), 'IPv4')
      t.equal(settled?.userspace.portals, 'addresses', 'a proxy that runs with it has no rules')
      const made = planner({ bindAddress })
      t.match(made.render(made.plan(state([service()]))), /^address 10\.96\.0\.10 on this machine/)
    }
  })

  t.test('S16, S17: a Service has a listener for each of its endpoint lists', async (t) => {
    const lists = (spec: Parameters<typeof service>[0]) =>
      [...plans()(state([service(spec)])).services.values()].flatMap(({ listeners }) =>
        listeners.map(({ list, spec }) => `${list} ${spec.endpoints.length}`),
      )
    const endpoints = [{ ip: '10.180.0.1' }, { ip: '10.180.1.1', local: false }]
    t.same(lists({ endpoints }), ['cluster 2'])
    t.same(lists({ endpoints, internalPolicyLocal: true }), ['local 1'])
    t.same(lists({ endpoints, nodePort: 30080, externalPolicyLocal: true }), [
      'cluster 2',
      'local 1',
    ])
    t.same(lists({ endpoints: [] }), ['cluster 0'], 'one that has none keeps its port')
  })

  t.test('S13: source ranges and policy Local are applied together', async (t) => {
    const spec = service({
      loadBalancerIps: ['203.0.113.1'],
      sourceRanges: ['10.0.0.0/8', '10.180.7.0/24', '198.51.100.0/24'],
      externalPolicyLocal: true,
      endpoints: [{ ip: '10.180.0.1' }, { ip: '10.180.1.1', local: false }],
    })
    const go = walk([spec])
    const all = '10.180.0.1:8080 masqueraded or 10.180.1.1:8080 masqueraded'
    t.equal(go('10.180.0.9', '203.0.113.1:80'), all, 'a pod, in the range of 10.0.0.0/8')
    t.equal(go('10.180.7.9', '203.0.113.1:80'), all, 'a pod, in the smaller range')
    for (const stranger of ['10.9.9.9', '198.51.100.7'])
      t.equal(go(stranger, '203.0.113.1:80'), '10.180.0.1:8080 masqueraded', stranger)
    t.equal(go('outside', '203.0.113.1:80'), 'dropped')
  })

  t.test('S35: a range that contains the node also lets in the address itself', async (t) => {
    const own = states('IPv4', {}, ['127.0.0.1', '192.0.2.1', '203.0.113.1'])
    const spec = { loadBalancerIps: ['203.0.113.1'], endpoints: 1 }
    const go = (...sourceRanges: string[]) =>
      walkOf('userspace', own.put(service({ ...spec, sourceRanges })).take())
    for (const from of ['192.0.2.1', '203.0.113.1']) {
      t.equal(go('192.0.2.0/24')(from, '203.0.113.1:80'), '10.180.0.1:8080 masqueraded', from)
      t.equal(go('198.51.100.0/24')(from, '203.0.113.1:80'), 'dropped', from)
    }
  })

  t.test('US80: the PROXY header of a Service; version 1 has no datagrams', (t) => {
    const headerOf = (protocol: 'TCP' | 'UDP', word: string, portals?: 'addresses') => {
      const options = { 'proxy-protocol': word }
      const plan = plans(portals ? { portals } : {})(state([service({ protocol, options })]))
      return [...plan.services.values()][0]?.listeners[0]?.spec.proxyHeader
    }
    const asked = { ip: '10.96.0.10', port: 80 }
    t.same(headerOf('TCP', 'v1'), { version: 1, asked })
    t.same(headerOf('UDP', 'v2'), { version: 2, asked })
    t.equal(headerOf('UDP', 'v1'), undefined)
    t.equal(headerOf('TCP', 'V2'), undefined)
    t.same(headerOf('TCP', 'v2', 'addresses'), { version: 2, asked: undefined })
    t.end()
  })

  t.test('US37: an SCTP Service is reported, not served', async (t) => {
    const plan = plans()(state([service({ protocol: 'SCTP' })]))
    t.match([...plan.services.values()], [{ listeners: [], rules: [], unsupported: /SCTP/ }])
  })

  t.test('a port range has the same few rules for any number of Services', async (t) => {
    const specs = [1, 2, 3].map((number) =>
      service({ name: `web-${number}`, clusterIp: `10.96.1.${number}` }),
    )
    t.equal(rulesOf(specs, 'KUBE-PORTALS-DIRECT').length, 3)
    t.match(rulesOf(specs, 'KUBE-PORTALS-DIRECT', { portRange: '1-9' }), [
      /tcp --dport 1:9 -j KUBE-PORTALS-LISTENER/,
      /udp --dport 1:9 -j KUBE-PORTALS-LISTENER/,
    ])
    t.match(rulesOf(specs, 'KUBE-PORTALS-LISTENER'), [/DNAT -j ACCEPT/, /REJECT/, /REJECT/])
  })

  t.test(
    'an unchanged Service keeps its part of the plan, and an equal state keeps the plan',
    async (t) => {
      const cluster = states()
      const specs = [1, 2].map((number) =>
        service({ name: `web-${number}`, clusterIp: `10.96.1.${number}` }),
      )
      const made = plans()
      const first = made(cluster.put(...specs).take())
      t.equal(made(cluster.take()), first)
      const second = made(cluster.put({ ...specs[0]!, port: 81 }).take())
      const { changed, added, removed } = second.services.since(first.services)
      t.same([changed.length, added.length, removed.length], [1, 0, 0])
      t.match(planner().renderChanges(second, first), /-A KUBE-PORTALS-CONTAINER .* 81 /)
      t.match(planner().renderChanges(second, first), /-D KUBE-PORTALS-CONTAINER .* 80 /)
    },
  )

  t.test('hostile names stay inside their comment', async (t) => {
    const [rule] = rulesOf([service({ portName: 'x" -j ACCEPT\n-A INPUT' })], 'KUBE-PORTALS-HOST')
    t.match(rule, '--comment "default/web:x\\" -j ACCEPT?-A INPUT" -m tcp')
  })
})

t.test('ports and descriptors are limited', async (t) => {
  t.test('US32: a range is used up to its last port', async (t) => {
    const ports = new PortAllocator({ from: 10, to: 12 })
    const none = new Set<number>()
    const taken = [ports.take(none), ports.take(none), ports.take(none)]
    t.same(taken.toSorted(), [10, 11, 12])
    t.equal(ports.take(none), undefined)
    ports.release(11)
    t.equal(ports.take(none), 11)
  })

  t.test('the descriptor budget takes back what a lost thread had', async (t) => {
    const budget = new DescriptorBudget(DescriptorBudget.allocate(10, 1))
    const held = DescriptorBudget.allocate(0)
    const lost = new DescriptorBudget(budget.shared, held)
    t.ok(lost.tryTake(4))
    t.notOk(lost.tryTake(7))
    t.ok(lost.tryWait())
    lost.release(1)
    t.ok(budget.tryTake(1))
    budget.takeBack(held)
    t.equal(budget.left, 9)
    t.ok(budget.tryWait())
    t.notOk(budget.tryWait())
  })

  t.test('the descriptor budget keeps a reserve for connections', async (t) => {
    const shared = DescriptorBudget.allocate(3)
    const [one, two] = [new DescriptorBudget(shared), new DescriptorBudget(shared)]
    t.ok(one.tryTake(2))
    t.notOk(two.tryTake(2))
    t.ok(two.tryTake(1))
    one.release(2)
    t.equal(two.left, 2)
    t.ok(two.tryTake(2))
    t.ok(one.tryListen(), 'a new Service does not wait for connections')
    t.ok(two.tryListen())
    t.notOk(one.tryListen(), 'connections keep a quarter')
    two.release(2)
    t.notOk(one.tryTake(1), 'connections wait for what listeners have')
    one.stopListening()
    t.ok(two.tryTake(1))
    t.ok(two.tryListen())
    t.same(two.left, -1)
    one.stopListening()
    one.stopListening()
    one.release(1)
    t.equal(two.left, 3 - 1)
    t.equal(
      descriptorLimit(
        openFilesLimit('Max open files            1024                 4096     files'),
      ),
      896,
    )
    t.equal(
      descriptorLimit(
        openFilesLimit('Max open files            64                   64       files'),
      ),
      43,
    )
  })
})

t.test('the number of metrics is bounded, and old ones are removed', async (t) => {
  const endpoints = new Set<string>()
  const forgotten: unknown[] = []
  const open: number[] = []
  const meter = new TrafficMeter({
    ...nowhere,
    count: (_, labels) => void endpoints.add(labels['endpoint'] ?? ''),
    gauge: (_name, _labels, value) => void (open[0] = value),
    forget: (labels) => void forgotten.push(labels),
  })
  const key = 'IPv4 default/web:http/TCP cluster'
  const bytes = { bytesToEndpoint: 0, bytesToClient: 0 }
  const dead = { resets: 0, lateAnswers: 0, deadClients: 0, deadEndpoints: 0 }
  const counts = { connections: 1, dialErrors: 0, headersRefused: 0, ...dead, ...bytes }
  for (let number = 0; number < 5000; number++) {
    const endpoint = { endpoint: String(number), ...counts, dialSeconds: [] }
    meter.record([{ key, active: 0, refused: 0, endpoints: [endpoint], left: [] }])
  }
  t.equal(endpoints.size, 4097)
  t.ok(endpoints.has('other'))
  meter.record([{ key, active: 7, refused: 0, endpoints: [], left: [] }])
  t.same(open, [7])
  meter.lost([key])
  t.same(open, [0], 'connections that ended with their worker')
  const other = 'IPv4 default/web:http/TCP local'
  const again = [{ endpoint: '0', ...counts, dialSeconds: [] }]
  meter.record([{ key: other, active: 0, refused: 0, endpoints: again, left: [] }])
  meter.record([{ key, active: 0, refused: 0, endpoints: [], left: ['0'] }])
  t.same(forgotten, [], 'another listener has counted it')
  meter.closed(other)
  t.same(forgotten.splice(0), [{ service: 'default/web:http', protocol: 'TCP', endpoint: '0' }])
  const late = [{ endpoint: 'late', ...counts, dialSeconds: [] }]
  meter.record([{ key, active: 0, refused: 0, endpoints: late, left: [] }])
  t.ok(endpoints.has('late'), 'there is room for another one')
  meter.closed(key)
  t.same(forgotten, [{ service: 'default/web:http', protocol: 'TCP' }])
})

t.test(
  'the node reaches its listeners at an address that it has, whatever its object says',
  async (t) => {
    const cluster = states('IPv4', { bindAddress: '192.0.2.9' }, ['127.0.0.1', '192.0.2.1'])
    const rules = plans()(cluster.put(service()).take()).services.get('default/web:http/TCP')?.rules
    t.match(JSON.stringify(rules), /"address":"192\.0\.2\.1"/)
    t.notMatch(JSON.stringify(rules), /192\.0\.2\.9/)
  },
)
