import { readdirSync, readFileSync } from 'node:fs'
import t from 'tap'
import { parseCidr } from '../../lib/state/ip.js'
import { nftablesPlanner } from '../../lib/modes/nftables/plan.js'
import { renderChanges, renderPlan } from '../../lib/modes/nftables/render.js'
import { between } from '../../lib/modes/nftables/changes.js'
import { endpointBaseName, serviceBaseName } from '../../lib/modes/nftables/names.js'
import { trialTransaction } from '../../lib/modes/nftables/trial.js'
import type { Statement } from '../../lib/kernel/nftables/model.js'
import { service, state, states, testSettings } from '../support/states.js'

const planner = () => nftablesPlanner(testSettings)
const render = (...specs: Parameters<typeof state>[0]) => renderPlan(planner()(state(specs)))
const named = (namespace: string, name: string, port = 'p80') =>
  ({ namespace, name, port, protocol: 'TCP' }) as const

void t.test('NF13: chains are called as kube-proxy calls them', async (t) => {
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

void t.test(
  'NF14: without affinity one rule balances and there are no endpoint chains',
  async (t) => {
    const text = render(service({ endpoints: 3, nodePort: 30080 }))
    t.match(text, 'dnat ip to numgen random mod 3 map { 0 : 10.180.0.1 . 8080, 1 :')
    t.notMatch(text, / endpoint-|up-to/)
    const one = render(service({ endpoints: 1, nodePort: 30080 }))
    t.match(one, 'meta l4proto tcp dnat to 10.180.0.1:8080')
  },
)

void t.test(
  'Services reached by ClusterIP alone share chains with all of about as many endpoints',
  async (t) => {
    const dns = { name: 'dns', protocol: 'UDP', port: 53, clusterIp: '10.96.0.11' } as const
    const lines = (...specs: Parameters<typeof state>[0]) => render(...specs).split('\n')
    const some = lines(service({ name: 'a' }), service({ name: 'b', clusterIp: '10.96.0.12' }))
    t.match(
      some.find((line) => line.startsWith('add element ip kube-proxy service-ips ')),
      '{ 10.96.0.10 . tcp . 80 comment "default/a:http" : goto tcp-services, ' +
        '10.96.0.12 . tcp . 80 comment "default/b:http" : goto tcp-services }',
    )
    t.match(
      some.filter((line) => line.includes('rule ip kube-proxy tcp-services')),
      [/ goto tcp-up-to-4$/],
    )
    t.notMatch(some.join('\n'), /chain ip kube-proxy (?:service|local)-[A-Z2-7]{8}/)
    t.match(
      some.filter((line) => line.includes('rule ip kube-proxy tcp-up-to-4')),
      [
        ...Array.from({ length: 4 }, () => /jump tcp-draw-4$/),
        /dnat ip to ip daddr \. tcp dport \. numgen random mod 1 map @tcp-endpoints comment "/,
      ],
    )
    t.match(
      some.filter((line) => line.includes('rule ip kube-proxy tcp-draw-4')),
      Array.from(
        { length: 4 },
        () => /dnat ip to ip daddr \. tcp dport \. numgen random mod 4 map @tcp-endpoints$/,
      ),
    )
    t.match(some.join('\n'), '10.96.0.10 . 80 . 0 : 10.180.0.1 . 8080')
    t.match(lines(service(dns)).join('\n'), '10.96.0.11 . 53 . 1 : 10.180.0.2 . 8080')
    const here = [{ ip: '10.180.0.1' }, { ip: '10.180.1.1', local: false }]
    const local = lines(service({ internalPolicyLocal: true, endpoints: here })).join('\n')
    t.match(local, '10.96.0.10 . tcp . 80 comment "default/web:http" : goto tcp-services')
    t.notMatch(local, '10.180.1.1 . 8080', 'policy Local: endpoints of this node only')
    for (const other of [{ nodePort: 30080 }, { externalIps: ['203.0.113.1'] }]) {
      t.notMatch(render(service(other)), 'up-to', 'packets to other addresses have other keys')
    }
  },
)

void t.test('the larger of them stand in a set of their size, which is asked first', async (t) => {
  const of = (endpoints: number, clusterIp = '10.96.0.10') =>
    service({ name: `of-${endpoints}`, clusterIp, endpoints })
  const text = render(of(4), of(5, '10.96.0.11'), of(17, '10.96.0.12'), of(64, '10.96.0.13'))
  t.match(
    text.split('\n').filter((line) => line.includes('rule ip kube-proxy tcp-services')),
    [
      / ip daddr \. th dport @tcp-up-to-64 goto tcp-up-to-64$/,
      / ip daddr \. th dport @tcp-up-to-16 goto tcp-up-to-16$/,
      / tcp-services goto tcp-up-to-4$/,
    ],
    'no set of 4: whoever is missed by a lookup finds places there that are filled',
  )
  t.match(text, 'element ip kube-proxy tcp-up-to-16 { 10.96.0.11 . 80 }\n')
  t.match(text, 'element ip kube-proxy tcp-up-to-64 { 10.96.0.12 . 80, 10.96.0.13 . 80 }\n')
  t.notMatch(text, 'add set ip kube-proxy tcp-up-to-4 ')
  const large = render(of(17))
  t.match(large, 'rule ip kube-proxy tcp-services goto tcp-up-to-4\n', 'even where nobody is small')
  t.match(large, 'rule ip kube-proxy tcp-up-to-4 jump tcp-draw-4')
})

void t.test('who has the address and port has the size, too', async (t) => {
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
  'NF14: endpoints in shared chains have places alike, and a draw is bound to hit',
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
  'another number of endpoints changes elements without a verdict only, but for the first of a size',
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

void t.test('the last Service of about as many endpoints takes their chains along', async (t) => {
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

void t.test('NF23: what the kernel is asked to try has every kind of statement', async (t) => {
  const source = readFileSync('lib/kernel/nftables/model.ts', 'utf8')
  const kinds = [...source.matchAll(/kind: '([a-z0-9-]+)'/g)].map(([, kind]) => kind ?? '')
  t.ok(kinds.length > 10)
  const tried = new Set(
    trialTransaction('IPv4').commands.flatMap((command) =>
      command.do === 'add-rule' ? command.rule.statements.map(({ kind }) => kind) : [],
    ),
  )
  t.same([...kinds].filter((kind) => !tried.has(kind as Statement['kind'])).sort(), [])
})

void t.test('NF15: with affinity, sets are asked before chance', async (t) => {
  const lines = render(service({ affinitySeconds: 10800 })).split('\n')
  const rules = lines.filter((line) => line.startsWith('add rule ip kube-proxy service-'))
  t.match(rules, [
    /ip saddr @affinity-.* goto endpoint-/,
    /goto endpoint-/,
    /numgen random mod 2 vmap/,
  ])
  t.match(lines.join('\n'), /flags dynamic, timeout ; timeout 10800s/)
})

void t.test(
  'S16, S19, NF08: refusals go to the maps that are read in the filter chains',
  async (t) => {
    const away = [{ ip: '10.180.0.9', local: false }]
    const text = render(
      service({ name: 'none', endpoints: 0, nodePort: 30001, externalIps: ['203.0.113.1'] }),
      service({
        name: 'away',
        clusterIp: '10.96.0.11',
        internalPolicyLocal: true,
        endpoints: away,
      }),
    )
    t.match(
      text,
      /no-endpoint-services \{[^}]*10\.96\.0\.10 \. tcp \. 80 comment "default\/none:http" : goto reject-chain/,
    )
    t.match(
      text,
      /no-endpoint-services \{[^}]*203\.0\.113\.1 \. tcp \. 80 comment "default\/none:http" : goto reject-chain/,
    )
    t.match(
      text,
      /no-endpoint-services \{[^}]*10\.96\.0\.11 \. tcp \. 80 comment "default\/away:http" : drop/,
    )
    t.match(text, /no-endpoint-nodeports \{ tcp \. 30001 comment/)
    t.notMatch(text, /add element ip kube-proxy service-(ips|nodeports)/)
  },
)

void t.test(
  'S17, S18, NF16: policy Local keeps outside clients here, pods and node short-cut',
  async (t) => {
    const endpoints = [{ ip: '10.180.0.1' }, { ip: '10.180.1.1', local: false }]
    const text = render(service({ nodePort: 30080, externalPolicyLocal: true, endpoints }))
    const external = text
      .split('\n')
      .filter((line) => line.includes('rule ip kube-proxy external-'))
    t.match(external, [
      /ip saddr 10\.180\.0\.0\/16 goto service-/,
      /fib saddr type local jump mark-for-masquerade/,
      /fib saddr type local goto service-/,
      / goto local-/,
    ])
    const away = render(
      service({ nodePort: 30080, externalPolicyLocal: true, endpoints: endpoints.slice(1) }),
    )
    t.match(away, /no-endpoint-nodeports \{ tcp \. 30080 comment "default\/web:http" : drop/)
    t.match(away, /service-nodeports \{ tcp \. 30080 : goto external-/, 'for pods and the node')
  },
)

void t.test('S12, S13, S35, NF09: source ranges guard load-balancer addresses only', async (t) => {
  const guarded = service({
    nodePort: 30080,
    externalIps: ['203.0.113.1'],
    loadBalancerIps: ['203.0.113.2'],
    sourceRanges: ['198.51.100.0/24', '198.51.100.128/25'],
  })
  const text = render(guarded)
  t.match(text, /ip saddr != 198\.51\.100\.0\/24 drop/)
  t.match(
    text,
    /firewall-ips \{ 203\.0\.113\.2 \. tcp \. 80 comment "default\/web:http" : goto firewall-/,
  )
  t.notMatch(text, /fib saddr type local return/)
  const withNode = render({ ...guarded, sourceRanges: ['192.0.2.0/24'] })
  t.match(withNode, /fib saddr type local return/, 'the node may, from whatever address it has')
})

void t.test(
  'R08, NF12: masquerade by pod source, by interface, always, or not at all',
  async (t) => {
    const rules = (settings: object, detectLocal?: object) =>
      renderPlan(
        nftablesPlanner({ ...testSettings, ...settings })(
          states('IPv4', detectLocal ? { detectLocal: detectLocal as never } : {})
            .put(service())
            .take(),
        ),
      ).match(/rule ip kube-proxy services ip daddr @cluster-ips.*/)?.[0]
    t.match(rules({}), 'ip saddr != 10.180.0.0/16 jump mark-for-masquerade')
    t.match(rules({ masqueradeAll: true }), '@cluster-ips jump mark-for-masquerade')
    const byPrefix = { mode: 'InterfaceNamePrefix', prefix: 'cali' }
    t.match(rules({}, byPrefix), 'iifname != "cali*" jump mark-for-masquerade')
  },
)

void t.test(
  'places that several service ports want go to the first by key, and outlive it',
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

void t.test('NF18: a change touches its service only, and no change says nothing', async (t) => {
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

void t.test(
  'a new affinity timeout replaces the set between letting go and taking again',
  async (t) => {
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
  },
)

void t.test(
  'NF01, NF02, NF03, NF05, NF06, NF07: one table with the base chains, jumps, maps and sets',
  async (t) => {
    const lines = render(service({ nodePort: 30080 }))
      .trim()
      .split('\n')
    for (const line of lines) t.match(line, /^add \w+ ip kube-proxy\b/, 'NF01')
    const bases = lines.flatMap(
      (line) => / (\S+) \{ type (\S+ hook .*) ;/.exec(line)?.slice(1).join(': ') ?? [],
    )
    t.same(
      bases.sort(),
      [
        'filter-forward: filter hook forward priority 0',
        'filter-input: filter hook input priority 0',
        'filter-output-pre-dnat: filter hook output priority -110',
        'filter-output: filter hook output priority 0',
        'filter-prerouting-pre-dnat: filter hook prerouting priority -110',
        'nat-output: nat hook output priority -100',
        'nat-postrouting: nat hook postrouting priority 100',
        'nat-prerouting: nat hook prerouting priority -100',
      ],
      'NF02',
    )
    const jumps = lines.flatMap(
      (line) => /rule ip kube-proxy ((?:filter|nat)-.*)/.exec(line)?.slice(1) ?? [],
    )
    t.same(
      jumps.sort(),
      [
        'filter-forward ct state new jump cluster-ips-check',
        'filter-forward ct state new jump service-endpoints-check',
        'filter-input ct state new jump nodeport-endpoints-check',
        'filter-input ct state new jump service-endpoints-check',
        'filter-output ct state new jump cluster-ips-check',
        'filter-output ct state new jump service-endpoints-check',
        'filter-output-pre-dnat ct state new jump firewall-check',
        'filter-prerouting-pre-dnat ct state new jump firewall-check',
        'nat-output jump services',
        'nat-postrouting jump masquerading',
        'nat-prerouting jump services',
      ],
      'NF03',
    )
    const text = lines.join('\n')
    t.match(
      text,
      /add map ip kube-proxy service-ips \{ type ipv4_addr \. inet_proto \. inet_service : verdict/,
    )
    t.match(text, /service-ips \{ 10\.96\.0\.10 \. tcp \. 80 : goto service-/, 'NF05')
    t.match(
      text,
      /map ip kube-proxy service-nodeports \{ type inet_proto \. inet_service : verdict/,
    )
    t.match(
      text,
      'fib daddr type local ip daddr != 127.0.0.0/8 meta l4proto . th dport vmap @service-nodeports',
    )
    t.match(text, /set ip kube-proxy cluster-ips \{ type ipv4_addr/)
    t.match(
      text,
      /set ip kube-proxy hairpin-connections \{ type ipv4_addr \. ipv4_addr \. inet_proto \. inet_service/,
    )
    t.notMatch(text, 'nodeport-ips', 'NF07: only where addresses are chosen')
    const chosen = renderPlan(
      planner()(
        states('IPv4', { nodePortAddresses: ['192.0.2.0/24'] })
          .put(service({ nodePort: 30080 }))
          .take(),
      ),
    )
    t.match(chosen, 'nodeport-ips { 192.0.2.1 }')
    t.match(chosen, 'ip daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports')
  },
)

void t.test('NF11: a changed ServiceCIDR is a rule at once', async (t) => {
  const plan = planner()
  const before = states().put(service()).take()
  const first = plan(before)
  const cidr = parseCidr('10.96.0.0/12')!
  const changes = renderChanges(plan({ ...before, serviceCidrs: [cidr] }), first)
  t.match(changes, 'cluster-ips-check ip daddr 10.96.0.0/12 drop')
  t.notMatch(changes, 'service-', 'and nothing else is touched')
})

void t.test(
  'NF26, NF27: nothing is dropped for being invalid, and nothing is accepted',
  async (t) => {
    const text = render(
      service({
        nodePort: 30080,
        loadBalancerIps: ['203.0.113.2'],
        sourceRanges: ['192.0.2.0/24'],
      }),
      service({ name: 'none', clusterIp: '10.96.0.11', endpoints: 0 }),
    )
    t.notMatch(text, /invalid(?! ports)|\baccept\b/)
  },
)

void t.test('every behaviour of this mode is named by a test or a case', async (t) => {
  const folders = ['test/modes', 'test/kernel', 'test/cases', 'test/conformance']
  const texts = folders.flatMap((folder) =>
    readdirSync(folder)
      .filter((file) => /^nftables.*\.test\.ts$|\.yaml$/.test(file))
      .map((file) => readFileSync(`${folder}/${file}`, 'utf8')),
  )
  // Only what stands in a name counts: of a test, or of a case.
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
