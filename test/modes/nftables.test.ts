import { readdirSync, readFileSync } from 'node:fs'
import t from 'tap'
import { parseCidr } from '../../lib/state/ip.js'
import { nftablesPlanner } from '../../lib/modes/nftables/plan.js'
import { renderChanges, renderPlan } from '../../lib/modes/nftables/render.js'
import { between } from '../../lib/modes/nftables/changes.js'
import { endpointBaseName, serviceBaseName } from '../../lib/modes/nftables/names.js'
import {
  hashTrialTransaction,
  logTrialTransaction,
  trialTransaction,
} from '../../lib/modes/nftables/trial.js'
import type { Statement } from '../../lib/kernel/nftables/model.js'
import { service, state, states, testSettings, type ServiceSpec } from '../support/states.js'
import { walkOf } from '../support/walks.js'
import type { DetectLocal } from '../../lib/state/node-view.js'

const planner = () => nftablesPlanner(testSettings)
const render = (...specs: Parameters<typeof state>[0]) => renderPlan(planner()(state(specs)))
const named = (namespace: string, name: string, port = 'p80') =>
  ({ namespace, name, port, protocol: 'TCP' }) as const

void t.test('NF13: chains have the names of kube-proxy', async (t) => {
  t.equal(serviceBaseName(named('ns1', 'svc1')), 'ULMVA6XW-ns1/svc1/tcp/p80')
  t.equal(
    endpointBaseName(named('ns1', 'svc1'), '10.180.0.1', 80),
    '5OJB2KTY-ns1/svc1/tcp/p80__10.180.0.1/80',
  )
  t.match(endpointBaseName(named('ns1', 'svc1'), 'fd00::1', 80), /__fd00\.\.1\/80$/)
  t.equal(endpointBaseName(named('n'.repeat(200), 's'.repeat(200)), '10.0.0.1', 80).length, 240)
})

void t.test('hostile names stay inside names and comments', async (t) => {
  const hostile = 'x" ; } flush ruleset\n add table ip evil {'
  const text = render(
    service({ namespace: hostile, name: hostile, portName: hostile, affinitySeconds: 5 }),
    service({ name: hostile, clusterIp: '10.96.0.11', endpoints: 0 }),
  )
  for (const line of text.trim().split('\n')) {
    t.match(line, /^add (table|set|map|chain|rule|element) ip kube-proxy/)
    t.equal((line.match(/"/g) ?? []).length % 2, 0)
  }
  t.notMatch(text.replace(/"[^"]*"/g, '""'), /flush ruleset|table ip evil/)
  const [one, other] = ['a b', 'a.b'].map((name) => serviceBaseName(named('ns', name)))
  t.not(one, other, 'names that look alike afterwards are told apart by the hash')
})

/** Where packets end under the plan of these Services. */
const walk = (...specs: readonly ServiceSpec[]) => walkOf('nftables', state(specs))

void t.test(
  'NF14: without affinity one rule balances and there are no endpoint chains',
  async (t) => {
    const three = service({ endpoints: 3, nodePort: 30080 })
    const each = [1, 2, 3].map((last) => `10.180.0.${last}:8080`)
    t.equal(walk(three)('pod', '10.96.0.10:80'), each.join(' or '))
    t.equal(
      walk(three)('outside', '192.0.2.1:30080'),
      each.map((one) => `${one} masqueraded`).join(' or '),
    )
    const text = render(three)
    t.equal(text.match(/dnat ip to numgen random mod 3 map/g)?.length, 1)
    t.notMatch(text, / endpoint-|up-to/)
  },
)

void t.test('Services that have only a ClusterIP share the chains of their size', async (t) => {
  const a = service({ name: 'a' })
  const b = service({ name: 'b', clusterIp: '10.96.0.12', endpoints: ['10.180.0.9'] })
  const dns = service({ name: 'dns', protocol: 'UDP', port: 53, clusterIp: '10.96.0.11' })
  const go = walk(a, b, dns)
  t.equal(go('pod', '10.96.0.10:80'), '10.180.0.1:8080 or 10.180.0.2:8080')
  t.equal(go('pod', '10.96.0.12:80'), '10.180.0.9:8080')
  t.equal(go('pod', '10.96.0.11:53', 'UDP'), '10.180.0.1:8080 or 10.180.0.2:8080')
  t.equal(go('pod', '10.96.0.11:53', 'TCP'), 'refused', 'a ClusterIP has no other ports')
  const text = render(a, b, dns)
  t.notMatch(text, /chain ip kube-proxy (?:service|local|endpoint)-[A-Z2-7]{8}/)
  t.match(text, 'comment "default/a:http" : goto tcp-services', 'whose an element is')
  const here = [{ ip: '10.180.0.1' }, { ip: '10.180.1.1', local: false }]
  const local = service({ internalPolicyLocal: true, endpoints: here })
  t.equal(walk(local)('pod', '10.96.0.10:80'), '10.180.0.1:8080', 'policy Local')
  for (const other of [{ nodePort: 30080 }, { externalIps: ['203.0.113.1'] }]) {
    t.notMatch(render(service(other)), 'up-to', 'packets to other addresses have other keys')
  }
})

void t.test('a larger Service is in the set of its size, which is looked up first', async (t) => {
  const of = (endpoints: number, clusterIp = '10.96.0.10') =>
    service({ name: `of-${endpoints}`, clusterIp, endpoints })
  const specs = [of(4), of(5, '10.96.0.11'), of(17, '10.96.0.12'), of(64, '10.96.0.13')]
  const endpointsOf = (to: string) => walk(...specs)('pod', to).split(' or ').length
  const sizes = specs.map(
    ({ clusterIp, endpoints }) => [endpoints.length, `${clusterIp}:80`] as const,
  )
  for (const [size, to] of sizes) t.equal(endpointsOf(to), size, 'each as often')
  const text = render(...specs)
  t.match(text, 'element ip kube-proxy tcp-up-to-16 { 10.96.0.11 . 80 }\n')
  t.match(text, 'element ip kube-proxy tcp-up-to-64 { 10.96.0.12 . 80, 10.96.0.13 . 80 }\n')
  // The smallest size needs no set: packets that no other set contains go there.
  t.notMatch(text, 'add set ip kube-proxy tcp-up-to-4 ')
  const large = render(of(17))
  t.match(large, 'rule ip kube-proxy tcp-services goto tcp-up-to-4\n', 'even where nobody is small')
})

void t.test('the Service that owns an address and port decides its size', async (t) => {
  const cluster = states()
  const plan = planner()
  const a = service({ name: 'a', endpoints: 2 })
  const b = service({ name: 'b', endpoints: 5 })
  const both = plan(cluster.put(a, b).take())
  t.notMatch(renderPlan(both), 'add element ip kube-proxy tcp-up-to-16')
  const onlyB = plan(cluster.remove(a).take())
  const changes = renderChanges(onlyB, both)
  t.match(changes, 'add element ip kube-proxy tcp-up-to-16 { 10.96.0.10 . 80 }')
  t.equal(renderPlan(onlyB), renderPlan(planner()(cluster.take())), 'a fresh plan is the same')
})

void t.test(
  'NF14: endpoints in shared chains have equal shares, and the draws find one of them',
  async (t) => {
    for (const endpoints of [1, 2, 3, 4, 5, 9, 16, 17, 33, 64, 65, 129, 1000]) {
      const text = render(service({ endpoints }))
      const places = Number(/add element ip kube-proxy tcp-up-to-(\d+)/.exec(text)?.[1] ?? 4)
      const count = (words: string) => text.split(words).length - 1
      const draws = count(`jump tcp-draw-${places}\n`)
      const each = count(`numgen random mod ${places} map`)
      const counts = new Map<string, number>()
      const numbers = new Set<number>()
      for (const [, number, target] of text.matchAll(/10\.96\.0\.10 \. 80 \. (\d+) : (\S+)/g)) {
        counts.set(target ?? '', (counts.get(target ?? '') ?? 0) + 1)
        numbers.add(Number(number))
      }
      t.equal(counts.size, endpoints)
      t.equal(new Set(counts.values()).size, 1, `${endpoints} endpoints, each as often`)
      t.ok(numbers.has(0), 'what the last rule takes is there')
      t.ok(Math.max(...numbers) < places)
      const misses = (1 - numbers.size / places) ** (draws * each)
      t.ok(misses <= 2 ** -32, `${endpoints} of ${places}: ${misses}`)
    }
  },
)

void t.test(
  'another number of endpoints changes no chain, except for the first Service of a size',
  async (t) => {
    const cluster = states()
    const plan = planner()
    const others = [1, 5].map((endpoints) =>
      service({ name: `other-${endpoints}`, clusterIp: `10.96.0.1${endpoints}`, endpoints }),
    )
    const commands = (before: number, after: number) => {
      const old = plan(cluster.put(...others, service({ endpoints: before })).take())
      const now = plan(cluster.put(service({ endpoints: after })).take())
      return between(now, old).commands
    }
    for (const [before, after] of [
      [1, 2],
      [3, 4],
      [4, 3],
      [4, 5],
      [5, 6],
      [16, 7],
      [7, 2],
    ] as const) {
      const done = commands(before, after)
      const rest = done.filter((one) => !('element' in one) || one.element.verdict !== undefined)
      t.same([done.length > 0, rest], [true, []], `${before} to ${after}`)
    }
    const sets = commands(6, 7).map((one) => 'element' in one && one.element.set.name)
    t.notOk(sets.includes('tcp-up-to-16'), 'who stays in a set is not moved')
    const first = commands(16, 17).map((command) => command.do)
    t.ok(first.includes('add-chain'), 'the first of a size brings its chains')
  },
)

void t.test('the chains of a size are removed with the last Service of that size', async (t) => {
  const cluster = states()
  const plan = planner()
  const [a, b] = [service({ name: 'a' }), service({ name: 'b', clusterIp: '10.96.0.11' })]
  const both = plan(cluster.put(a, b).take())
  const one = plan(cluster.remove(a).take())
  t.notMatch(renderChanges(one, both), /up-to|draw/)
  t.equal(one.parts.get('tcp-services'), both.parts.get('tcp-services'))
  const five = plan(cluster.put(service({ ...b, endpoints: 5 })).take())
  t.match(renderChanges(five, one), 'add chain ip kube-proxy tcp-up-to-16')
  t.match(renderChanges(five, one), 'add set ip kube-proxy tcp-up-to-16')
  t.equal(renderPlan(planner()(cluster.take())), renderPlan(five), 'a fresh plan is the same')
  const four = plan(cluster.put(service({ ...b, endpoints: 4 })).take())
  t.match(renderChanges(four, five), 'flush chain ip kube-proxy tcp-draw-16')
  t.same(
    between(four, five).retired.sets.map(({ name }) => name),
    ['tcp-up-to-16'],
  )
  t.equal(renderPlan(planner()(cluster.take())), renderPlan(four), 'a fresh plan is the same')
  const none = plan(cluster.remove(b).take())
  t.match(renderChanges(none, four), 'flush chain ip kube-proxy tcp-services')
  t.notOk(none.parts.get('tcp-services'))
})

void t.test('NF23: the trial transaction has every kind of statement', async (t) => {
  const source = readFileSync('lib/kernel/nftables/model.ts', 'utf8')
  const kinds = [...source.matchAll(/kind: '([a-z0-9-]+)'/g)].map(([, kind]) => kind ?? '')
  t.ok(kinds.length > 10)
  const tried = new Set(
    [trialTransaction, hashTrialTransaction, logTrialTransaction].flatMap((trial) =>
      trial('IPv4').commands.flatMap((command) =>
        command.do === 'add-rule' ? command.rule.statements.map(({ kind }) => kind) : [],
      ),
    ),
  )
  t.same([...kinds].filter((kind) => !tried.has(kind as Statement['kind'])).sort(), [])
})

void t.test(
  'with --flows what is refused or dropped is logged, and no other packet meets a rule more',
  async (t) => {
    const away = [{ ip: '10.180.0.9', local: false }]
    const services = [
      service(),
      service({
        ...{ name: 'away', clusterIp: '10.96.0.11', internalPolicyLocal: true },
        endpoints: away,
      }),
      service({ name: 'guarded', loadBalancerIps: ['203.0.113.1'], sourceRanges: ['10.0.0.0/8'] }),
    ]
    const plan = (logsRefused: boolean) => {
      const settings = { masqueradeAll: false, masqueradeBit: 14, logsRefused }
      return renderPlan(nftablesPlanner(settings)(state(services))).split('\n')
    }
    const [without, logging] = [plan(false), plan(true)]
    const isNew = (line: string) => !without.includes(line)
    const firewall = 'log prefix "not in loadBalancerSourceRanges" group 10249 drop'
    t.same(logging.filter((line) => line.includes('firewall-') && isNew(line)).length, 1)
    t.ok(logging.some((line) => line.endsWith(`ip saddr != 10.0.0.0/8 ${firewall}`)))
    t.same(logging.filter((line) => / (drop|reject)-chain/.test(line) && isNew(line)).sort(), [
      'add chain ip kube-proxy drop-chain',
      'add element ip kube-proxy no-endpoint-services { 10.96.0.11 . tcp . 80 comment "default/away:http" : goto drop-chain }',
      'add rule ip kube-proxy drop-chain log prefix "no local endpoint" group 10249 drop',
      'add rule ip kube-proxy reject-chain log group 10249 reject',
    ])
    t.equal(logging.length, without.length + 2, 'the chain that drops, and its rule')
    const go = walkOf('nftables', state(services), { 'flows.enabled': true })
    t.equal(go('pod', '10.96.0.11:80'), 'dropped')
    t.equal(go('outside', '203.0.113.1:80'), 'dropped')
  },
)

void t.test('NF15: with affinity a new client reaches each endpoint equally often', async (t) => {
  const go = walk(service({ affinitySeconds: 10800 }))
  t.equal(go('pod', '10.96.0.10:80'), '10.180.0.1:8080 or 10.180.0.2:8080')
})

void t.test('NF15: with affinity and many endpoints a change writes few rules', async (t) => {
  const many = (first: string) => [
    { ip: first },
    ...Array.from({ length: 999 }, (_, i) => ({ ip: `10.181.${i >> 8}.${i & 255}` })),
  ]
  const cluster = states()
  const plan = planner()
  const spec = (first: string) => service({ affinitySeconds: 60, endpoints: many(first) })
  const before = plan(cluster.put(spec('10.180.0.1')).take())
  const after = plan(cluster.put(spec('10.180.0.2')).take())
  const rules = between(after, before).commands.filter((each) => each.do === 'add-rule')
  t.ok(rules.length < 300, `${rules.length} rules`)
  const all = renderPlan(after)
  for (const { ip } of many('10.180.0.2')) {
    const remembered = new RegExp(
      `rule ip kube-proxy (clients-\\S+) ip saddr @(affinity-\\S+__${ip}/8080) goto`,
    )
    if (!remembered.test(all)) t.fail(`no rule for the clients of ${ip}`)
  }
  const jumps = all.match(/rule ip kube-proxy service-\S+ jump clients-\S+/g) ?? []
  t.equal(jumps.length, 16, 'the chain of the Service leads to all of them')
  const reached = walk(spec('10.180.0.2'))('pod', '10.96.0.10:80').split(' or ')
  t.equal(reached.length, 1000, 'a new client may reach each endpoint')
})

void t.test(
  'S16, S19, NF08: without endpoints packets are refused, and without local ones the policy drops them',
  async (t) => {
    const away = [{ ip: '10.180.0.9', local: false }]
    const go = walk(
      service({ name: 'none', endpoints: 0, nodePort: 30001, externalIps: ['203.0.113.1'] }),
      service({
        name: 'away',
        clusterIp: '10.96.0.11',
        internalPolicyLocal: true,
        endpoints: away,
      }),
    )
    for (const to of ['10.96.0.10:80', '203.0.113.1:80', '192.0.2.1:30001']) {
      t.equal(go('outside', to), 'refused', to)
      t.equal(go('node', to), 'refused', to)
    }
    t.equal(go('pod', '10.96.0.11:80'), 'dropped')
  },
)

void t.test(
  'S17, S18, NF16: policy Local sends outside clients to local endpoints, and pods and the node to all',
  async (t) => {
    const both = [{ ip: '10.180.0.1' }, { ip: '10.180.1.1', local: false }]
    const local = (endpoints: typeof both) =>
      walk(service({ nodePort: 30080, externalPolicyLocal: true, endpoints }))
    const go = local(both)
    t.equal(go('outside', '192.0.2.1:30080'), '10.180.0.1:8080', 'who sees the sender')
    t.equal(go('pod', '192.0.2.1:30080'), '10.180.0.1:8080 or 10.180.1.1:8080')
    const masqueraded = '10.180.0.1:8080 masqueraded or 10.180.1.1:8080 masqueraded'
    t.equal(go('node', '192.0.2.1:30080'), masqueraded)
    const away = local(both.slice(1))
    t.equal(away('outside', '192.0.2.1:30080'), 'dropped')
    t.equal(away('pod', '192.0.2.1:30080'), '10.180.1.1:8080')
    t.equal(away('node', '192.0.2.1:30080'), '10.180.1.1:8080 masqueraded')
  },
)

void t.test('S12, S13, S35, NF09: source ranges bind load-balancer addresses only', async (t) => {
  const guarded = service({
    nodePort: 30080,
    externalIps: ['203.0.113.1'],
    loadBalancerIps: ['203.0.113.2'],
    sourceRanges: ['198.51.100.0/24', '198.51.100.128/25'],
    endpoints: 1,
  })
  const go = walk(guarded)
  const served = '10.180.0.1:8080 masqueraded'
  t.equal(go('outside', '203.0.113.2:80'), 'dropped')
  t.equal(go('198.51.100.7', '203.0.113.2:80'), served)
  t.equal(go('node', '203.0.113.2:80'), 'dropped')
  t.equal(go('outside', '203.0.113.1:80'), served)
  t.equal(go('outside', '192.0.2.1:30080'), served)
  t.notMatch(render(guarded), '198.51.100.128', 'a range inside another says nothing')
  const withNode = walk({ ...guarded, sourceRanges: ['192.0.2.0/24'] })
  t.equal(withNode('192.0.2.1', '203.0.113.2:80'), served)
  t.equal(withNode('127.0.0.1', '203.0.113.2:80'), served, 'from whatever address the node has')
})

void t.test(
  'R08, NF12: packets are masqueraded by source address, by interface, always, or never',
  async (t) => {
    const cluster = (detectLocal?: DetectLocal) =>
      states('IPv4', detectLocal ? { detectLocal } : {})
        .put(service({ endpoints: 1 }))
        .take()
    const seen = (values: Readonly<Record<string, unknown>>, detectLocal?: DetectLocal) => {
      const go = walkOf('nftables', cluster(detectLocal), values)
      return ['pod', 'outside'].map((from) => go(from, '10.96.0.10:80').split(' ')[1] ?? 'kept')
    }
    t.same(seen({}), ['kept', 'masqueraded'])
    t.same(seen({ 'nftables.masqueradeAll': true }), ['masqueraded', 'masqueraded'])
    t.same(seen({}, { mode: 'InterfaceNamePrefix', prefix: 'cali' }), ['kept', 'masqueraded'])
    t.same(seen({}, { mode: 'BridgeInterface', name: 'cbr0' }), ['kept', 'masqueraded'])
    t.same(seen({}, { mode: 'ClusterCIDR', cidrs: [] }), ['kept', 'kept'], 'R08')
  },
)

void t.test(
  'an address or node port that several Services want belongs to the first by key, then to the next',
  async (t) => {
    const cluster = states()
    const plan = planner()
    const shared = { nodePort: 30080, externalIps: ['203.0.113.1'] }
    const a = service({ name: 'a', ...shared })
    const b = service({ name: 'b', clusterIp: '10.96.0.11', ...shared })
    const second = service({ name: 'b', portName: 'other', port: 81, clusterIp: '10.96.0.11' })
    const both = plan(cluster.put(b, a).take())
    const owner = /service-nodeports \{ tcp \. 30080 : goto external-\w+-default\/(\w)\//
    t.equal(owner.exec(renderPlan(both))?.[1], 'a')
    const onlyB = plan(cluster.remove(a).take())
    const changes = renderChanges(onlyB, both)
    t.match(changes, /delete element ip kube-proxy service-nodeports \{ tcp \. 30080 \}/)
    t.equal(owner.exec(changes)?.[1], 'b')
    t.notMatch(changes, /cluster-ips \{ 10\.96\.0\.11/)
    const replaced = plan(cluster.put(second).take())
    t.notMatch(
      renderChanges(replaced, onlyB),
      / cluster-ips /,
      'a ClusterIP stays with its last port',
    )
    t.equal(renderPlan(planner()(cluster.take())), renderPlan(replaced), 'a fresh plan is the same')
  },
)

void t.test('NF18: a change writes its own Service only, and no change nothing', async (t) => {
  const cluster = states()
  const plan = planner()
  const many = Array.from({ length: 300 }, (_, index) =>
    service({ name: `s${index}`, clusterIp: `10.96.${index >> 8}.${index & 255}` }),
  )
  const before = plan(cluster.put(...many).take())
  t.equal(renderChanges(plan(cluster.take()), before), '')
  const changed = { ...many[7]!, endpoints: [{ ip: '10.180.0.1' }, { ip: '10.180.0.77' }] }
  const after = plan(cluster.put(changed).take())
  const lines = renderChanges(after, before).trim().split('\n')
  t.match(lines, [
    /^delete element ip kube-proxy tcp-endpoints \{ 10\.96\.0\.7 \. 80 \. 1, 10\.96\.0\.7 \. 80 \. 3 \}$/,
    /^add element ip kube-proxy hairpin-connections \{ 10\.180\.0\.77 \. 10\.180\.0\.77 \. tcp \. 8080 \}$/,
    /^add element ip kube-proxy tcp-endpoints \{ 10\.96\.0\.7 \. 80 \. 1 : 10\.180\.0\.77 \. 8080, 10\.96\.0\.7 \. 80 \. 3 : 10\.180\.0\.77 \. 8080 \}$/,
  ])
  t.equal(lines.length, 3, 'no rule; and 10.180.0.2 still belongs to the others')
  t.equal(after.parts.get('default/s8:http/TCP'), before.parts.get('default/s8:http/TCP'))
  const without = plan(cluster.remove(many[7]!).take())
  t.notMatch(renderChanges(without, after), 'chain', 'what it had were elements')
  const rich = plan(cluster.put(service({ nodePort: 30080 })).take())
  const gone = renderChanges(plan(cluster.remove(service()).take()), rich)
  t.match(gone, /flush chain ip kube-proxy service-/)
  t.notMatch(gone, /delete chain/, 'NF20: later')
})

void t.test('a new affinity timeout replaces the set while no rule uses it', async (t) => {
  const cluster = states()
  const plan = planner()
  const before = plan(cluster.put(service({ affinitySeconds: 10, endpoints: 1 })).take())
  const after = plan(cluster.put(service({ affinitySeconds: 20, endpoints: 1 })).take())
  const verbs = renderChanges(after, before)
    .trim()
    .split('\n')
    .map((line) => line.split(' ').slice(0, 2).join(' '))
  t.same(verbs, [
    'flush chain',
    'flush chain',
    'delete set',
    'add set',
    'add rule',
    'add rule',
    'add rule',
    'add rule',
  ])
})

void t.test(
  'NF01, NF02, NF03, NF05, NF06: senders meet the same checks at every hook, in one table',
  async (t) => {
    const served = service({ endpoints: 1, nodePort: 30080 })
    const none = service({
      ...{ name: 'none', clusterIp: '10.96.0.11', endpoints: 0, nodePort: 30081 },
      externalIps: ['203.0.113.1', '192.0.2.1'],
    })
    const refused = ['10.96.0.10:81', '10.96.0.11:80', '203.0.113.1:80', '192.0.2.1:80']
    const go = walk(served, none)
    for (const from of ['pod', 'node', 'outside']) {
      for (const to of [...refused, '192.0.2.1:30081'])
        t.equal(go(from, to), 'refused', `${from} to ${to}`)
      t.equal(go(from, '192.0.2.1:30080'), '10.180.0.1:8080 masqueraded', from)
      t.equal(go(from, '192.0.2.1:30082'), 'this node', from)
    }
    for (const line of render(served, none).trim().split('\n')) {
      t.match(line, /^add \w+ ip kube-proxy\b/, 'NF01')
    }
  },
)

void t.test('NF07: node ports answer on the chosen addresses only', async (t) => {
  const addresses = ['127.0.0.1', '192.0.2.1', '198.51.100.9']
  const chosen = states('IPv4', { nodePortAddresses: ['192.0.2.0/24'] }, addresses)
  const go = walkOf('nftables', chosen.put(service({ nodePort: 30080, endpoints: 1 })).take())
  t.equal(go('outside', '192.0.2.1:30080'), '10.180.0.1:8080 masqueraded')
  t.equal(go('outside', '198.51.100.9:30080'), 'this node')
})

void t.test('NF11: a changed ServiceCIDR changes its rule at once', async (t) => {
  const plan = planner()
  const before = states().put(service()).take()
  const first = plan(before)
  const cidr = parseCidr('10.96.0.0/12')!
  const changes = renderChanges(plan({ ...before, serviceCidrs: [cidr] }), first)
  t.match(changes, 'cluster-ips-check ip daddr 10.96.0.0/12 drop')
  t.notMatch(changes, 'service-', 'and nothing else is touched')
})

void t.test('NF26, NF27: no rule drops invalid packets, and no rule accepts packets', async (t) => {
  const text = render(
    service({
      nodePort: 30080,
      loadBalancerIps: ['203.0.113.2'],
      sourceRanges: ['192.0.2.0/24'],
    }),
    service({ name: 'none', clusterIp: '10.96.0.11', endpoints: 0 }),
  )
  t.notMatch(text, /invalid(?! ports)|\baccept\b/)
})

void t.test('every behaviour of nftables mode is named by a test or a case', async (t) => {
  const folders = ['test/modes', 'test/kernel', 'test/cases', 'test/conformance']
  const texts = folders.flatMap((folder) =>
    readdirSync(folder)
      .filter((file) => /^nftables.*\.test\.ts$|\.yaml$/.test(file))
      .map((file) => readFileSync(`${folder}/${file}`, 'utf8')),
  )
  // Only names of tests and cases count.
  const names = texts.flatMap(
    (text) => text.match(/^.*(?:t\.test\(|- case: ).*$|^(?: {2}['`]| {4}`).*NF\d\d.*$/gm) ?? [],
  )
  const named = new Set(names.flatMap((name) => name.match(/\bNF\d\d\b/g) ?? []))
  const all = Array.from({ length: 30 }, (_, index) => `NF${String(index + 1).padStart(2, '0')}`)
  t.same(
    all.filter((id) => !named.has(id)),
    [],
  )
})
