import { readdirSync, readFileSync } from 'node:fs'
import t from 'tap'
import { Batch } from '../../lib/kernel/iptables.js'
import { changeBatch } from '../../lib/modes/iptables/render.js'
import { cleanupAll, cleanupBatch } from '../../lib/modes/iptables/cleanup.js'
import { RuleCounter } from '../../lib/modes/iptables/count.js'
import { iptablesPlanner } from '../../lib/modes/iptables/plan.js'
import { endpointChainName, serviceChainNames } from '../../lib/modes/iptables/names.js'
import { openFamilies } from '../../lib/modes/iptables/open.js'
import { iptablesSettings } from '../../lib/modes/iptables/settings.js'
import { findRefused, ownerOf } from '../../lib/modes/iptables/refused.js'
import { Verification } from '../../lib/modes/iptables/verify.js'
import { fullBatches } from '../../lib/modes/iptables/full-sync.js'
import { IptablesError, parseSaved } from '../../lib/kernel/iptables.js'
import { SavedReader } from '../../lib/kernel/iptables/saved.js'
import { PersistentMap } from '../../lib/state/persistent-map.js'
import { renderPlan } from '../../lib/modes/iptables/render.js'
import { service, state, states, testConfig } from '../support/states.js'
import { walkBy, walkOf } from '../support/walks.js'
import { iptablesRuleset } from '../../lib/inspect/explain/rulesets.js'
import { walkIptables } from '../../lib/inspect/explain/iptables-walk.js'
import { ForeignCommits } from '../../lib/modes/foreign-commits.js'
import { watchRules } from '../../lib/modes/iptables/watch.js'
import { waitForLock } from '../../lib/modes/xtables-lock.js'
import type { DetectLocal } from '../../lib/state/node-view.js'
import type { IpFamily } from '../../lib/state/ip.js'
import type { FamilyRules } from '../../lib/modes/iptables/apply.js'
import type { Content } from '../../lib/modes/iptables/render.js'
import type { IptablesPlan, PlanSettings } from '../../lib/modes/iptables/plan.js'
import type { ServiceRules } from '../../lib/modes/iptables/service-rules.js'
import type { ServiceSpec } from '../support/states.js'

const settings: PlanSettings = {
  masqueradeBit: 14,
  masqueradeAll: false,
  localhostNodePorts: true,
  randomFully: true,
  dropsInvalid: true,
  hasBpf: true,
  hasAccounting: false,
  hasLog: true,
  logsRefused: false,
}

function planOf(
  specs: readonly ServiceSpec[],
  changed: Partial<PlanSettings> = {},
  family: IpFamily = 'IPv4',
): IptablesPlan {
  return iptablesPlanner({ ...settings, ...changed })(state(specs, family))
}

const web = (spec: Parameters<typeof service>[0] = {}) => service({ name: 'web', ...spec })

t.test(
  'IT01 IT04: the fixed chains and the jumps into them have the names of upstream',
  async (t) => {
    const text = renderPlan(planOf([]))
    /** The chains of a table, and the built-in chains that jump to each. */
    const chainsOf = (table: string) => {
      const [lines = ''] = text.split(`*${table}\n`)[1]?.split('COMMIT') ?? []
      const names = [...lines.matchAll(/^:(\S+)/gm)].map(([, name = '']) => name)
      const from = (name: string) =>
        [...lines.matchAll(/^-A ([A-Z]+) .*-j (\S+)$/gm)].flatMap(([, from = '', to]) =>
          to === name ? from : [],
        )
      return Object.fromEntries(names.map((name) => [name, from(name).sort().join(' ')]))
    }
    t.same(chainsOf('mangle'), { 'KUBE-PROXY-CANARY': '' })
    t.same(chainsOf('nat'), {
      'KUBE-MARK-MASQ': '',
      'KUBE-NODEPORTS': '',
      'KUBE-POSTROUTING': 'POSTROUTING',
      'KUBE-PROXY-CANARY': '',
      'KUBE-SERVICES': 'OUTPUT PREROUTING',
    })
    t.same(chainsOf('filter'), {
      'KUBE-EXTERNAL-SERVICES': 'FORWARD INPUT',
      'KUBE-FIREWALL': 'INPUT OUTPUT',
      'KUBE-FORWARD': 'FORWARD',
      'KUBE-NODEPORTS': 'INPUT',
      'KUBE-PROXY-CANARY': '',
      'KUBE-PROXY-FIREWALL': 'FORWARD INPUT OUTPUT',
      'KUBE-SERVICES': 'FORWARD OUTPUT',
    })
  },
)

t.test('IT02 IT03: chains of Services and endpoints have the names of upstream', async (t) => {
  t.match(serviceChainNames('default/kubernetes:https', 'TCP'), {
    cluster: 'KUBE-SVC-NPX46M4PTMTKRN6Y',
    local: 'KUBE-SVL-NPX46M4PTMTKRN6Y',
    external: 'KUBE-EXT-NPX46M4PTMTKRN6Y',
    firewall: 'KUBE-FW-NPX46M4PTMTKRN6Y',
  })
  t.equal(serviceChainNames('kube-system/kube-dns:dns', 'UDP').cluster, 'KUBE-SVC-TCOU7JCQXEZGVUNU')
  t.equal(
    serviceChainNames('kube-system/kube-dns:dns-tcp', 'TCP').cluster,
    'KUBE-SVC-ERIFXISQEP7F7OF4',
  )
  t.match(
    endpointChainName('ns/n', 'TCP', '10.0.0.1:80'),
    /^KUBE-SEP-[A-Z2-7]{16}$/,
    '25 characters',
  )
})

/** Where packets end under the plan of these Services. */
const walk = (specs: readonly ServiceSpec[], values: Readonly<Record<string, unknown>> = {}) =>
  walkOf('iptables', state(specs), values)

t.test('IT20 IT31: a ClusterIP leads to each of its endpoints equally often', async (t) => {
  const specs = [web({ endpoints: 3 })]
  t.equal(
    walk(specs)('pod', '10.96.0.10:80'),
    '10.180.0.1:8080 or 10.180.0.2:8080 or 10.180.0.3:8080',
  )
  t.equal(walk(specs)('pod', '10.96.0.10:81'), 'untouched')
  t.equal(walk(specs)('pod', '10.96.0.10:80', 'UDP'), 'untouched')
  t.notMatch(renderPlan(planOf(specs)), /KUBE-SEP-/, 'no chain for each endpoint')
})

t.test('IT20 S16 S19: no endpoints refuse packets, and no local ones drop them', async (t) => {
  const none = walk([web({ endpoints: 0, nodePort: 30080, externalIps: ['203.0.113.1'] })])
  for (const to of ['10.96.0.10:80', '203.0.113.1:80', '192.0.2.1:30080']) {
    t.equal(none('outside', to), 'refused', to)
  }
  t.equal(none('node', '10.96.0.10:80'), 'refused')
  const local = walk([
    web({
      endpoints: [{ ip: '10.180.9.1', local: false }],
      internalPolicyLocal: true,
      externalPolicyLocal: true,
      loadBalancerIps: ['203.0.113.1'],
    }),
  ])
  t.equal(local('pod', '10.96.0.10:80'), 'dropped')
  t.equal(local('outside', '203.0.113.1:80'), 'dropped')
  // S18: pods and the node itself still reach the endpoints elsewhere.
  t.equal(local('pod', '203.0.113.1:80'), '10.180.9.1:8080')
  t.equal(local('node', '203.0.113.1:80'), '10.180.9.1:8080 masqueraded')
})

t.test('IT21: packets to a ClusterIP are masqueraded, except those of local pods', async (t) => {
  const one = web({ endpoints: 1 })
  const kept = '10.180.0.1:8080'
  const masqueraded = '10.180.0.1:8080 masqueraded'
  const plain = walk([one])
  t.equal(plain('pod', '10.96.0.10:80'), kept)
  t.equal(plain('outside', '10.96.0.10:80'), masqueraded)
  t.equal(walk([one], { 'iptables.masqueradeAll': true })('pod', '10.96.0.10:80'), masqueraded)
  const detecting = (detectLocal: DetectLocal) =>
    walkOf('iptables', states('IPv4', { detectLocal }).put(one).take())
  for (const detectLocal of [
    { mode: 'BridgeInterface', name: 'cbr0' },
    { mode: 'InterfaceNamePrefix', prefix: 'veth' },
  ] as const) {
    t.equal(detecting(detectLocal)('pod', '10.96.0.10:80'), kept, detectLocal.mode)
    t.equal(detecting(detectLocal)('outside', '10.96.0.10:80'), masqueraded, detectLocal.mode)
  }
  const unknown = detecting({ mode: 'ClusterCIDR', cidrs: [] })
  t.equal(unknown('outside', '10.96.0.10:80'), kept, 'R08: nobody, when nothing tells who is a pod')
  const several = detecting({ mode: 'ClusterCIDR', cidrs: ['10.1.0.0/16', '10.2.0.0/16'] })
  t.equal(several('10.1.0.9', '10.96.0.10:80'), kept)
  t.equal(several('10.2.0.9', '10.96.0.10:80'), kept)
  t.equal(several('10.3.0.9', '10.96.0.10:80'), masqueraded)
})

t.test('IT22-IT29 S35: external addresses and source ranges are applied', async (t) => {
  const balanced = {
    nodePort: 30080,
    externalIps: ['198.51.100.1'],
    loadBalancerIps: ['203.0.113.1'],
    endpoints: 1,
  } as const
  const guarded = walk([web({ ...balanced, sourceRanges: ['192.0.2.0/24', '172.16.0.0/12'] })])
  const served = '10.180.0.1:8080 masqueraded'
  t.equal(guarded('outside', '198.51.100.1:80'), served)
  t.equal(guarded('outside', '192.0.2.1:30080'), served)
  t.equal(guarded('172.16.0.1', '203.0.113.1:80'), served)
  t.equal(guarded('outside', '203.0.113.1:80'), 'dropped', 'in no range')
  t.equal(guarded('pod', '203.0.113.1:80'), 'dropped', 'a pod, too')
  t.equal(guarded('node', '203.0.113.1:80'), served, 'the node is in a range')
  const closed = walk([web({ ...balanced, sourceRanges: ['172.16.0.0/12'] })])
  t.equal(closed('node', '203.0.113.1:80'), 'dropped')
})

t.test('IT26: a health-check node port is reached through a closed INPUT chain', async (t) => {
  const balanced = { externalPolicyLocal: true, loadBalancerIps: ['203.0.113.1'] }
  const go = walk([web({ ...balanced, healthCheckNodePort: 31000 })])
  t.equal(go('outside', '192.0.2.1:31000'), 'let in')
  t.equal(go('outside', '192.0.2.1:31001'), 'this node')
})

t.test('IT30 IT32: with affinity a new client reaches each endpoint equally often', async (t) => {
  const go = walk([web({ affinitySeconds: 60 })])
  t.equal(go('pod', '10.96.0.10:80'), '10.180.0.1:8080 or 10.180.0.2:8080')
})

t.test('IT30 IT32: with affinity and many endpoints a change writes few rules', async (t) => {
  const ips = (first: string) => [
    first,
    ...Array.from({ length: 999 }, (_, i) => `10.181.${i >> 8}.${i & 255}`),
  ]
  const cluster = states()
  const plan = iptablesPlanner(settings)
  const spec = (first: string) => web({ affinitySeconds: 60, endpoints: ips(first) })
  const before = plan(cluster.put(spec('10.180.0.1')).take())
  const after = plan(cluster.put(spec('10.180.0.2')).take())
  const changes = changeBatch(after, before)
  t.ok(changes.rulesWritten('nat') < 400, `${changes.rulesWritten('nat')} rules`)
  const text = renderPlan(after)
  const own = serviceChainNames('default/web:http', 'TCP').cluster
  const isReached = (chain: string) =>
    text.includes(
      `-A ${own} -m comment --comment "default/web:http remembered clients" -j ${chain}\n`,
    )
  for (const ip of ips('10.180.0.2')) {
    const list = endpointChainName('default/web:http', 'TCP', `${ip}:8080`)
    const rule = new RegExp(`-A (KUBE-SVC-\\S+) .*--rcheck .*--name ${list} .*-j ${list}\\n`)
    if (!isReached(rule.exec(text)?.[1] ?? '')) t.fail(`no rule for the clients of ${ip}`)
  }
  const ways = walkIptables(
    iptablesRuleset(after),
    {
      ...{ family: 'IPv4', protocol: 'TCP', source: '10.180.9.9', inInterface: 'veth0', port: 80 },
      ...{ mark: 0, destination: '10.96.0.10', isDnated: false, isMasqueraded: false },
    },
    { localAddresses: new Set() },
  )
  const chances = ways.map(({ probability }) => probability).filter((each) => each > 0)
  t.equal(chances.length, 1000, 'a new client may reach each endpoint')
  t.ok(Math.min(...chances) > 0.00099 && Math.max(...chances) < 0.00101, 'equally often')
})

t.test('IT07 IT08: the mark is the configured bit, and is removed again', async (t) => {
  const go = walk([web({ endpoints: 1 })], { 'iptables.masqueradeBit': 15 })
  t.equal(go('outside', '10.96.0.10:80'), '10.180.0.1:8080 masqueraded')
  t.equal(go('pod', '10.96.0.10:80'), '10.180.0.1:8080')
  t.match(renderPlan(planOf([], { masqueradeBit: 15 })), 'MARK --or-mark 0x8000\n')
})

t.test(
  'IT08 IT09 IT11 IT35: rules that depend on the node are left out where they do not apply',
  async (t) => {
    for (const part of ['--random-fully', '--ctstate INVALID', '-A KUBE-FIREWALL']) {
      t.match(renderPlan(planOf([])), part)
    }
    t.notMatch(renderPlan(planOf([], { randomFully: false })), '--random-fully')
    t.notMatch(renderPlan(planOf([], { dropsInvalid: false })), 'INVALID')
    t.notMatch(renderPlan(planOf([], { localhostNodePorts: false })), '-A KUBE-FIREWALL')
    t.notMatch(renderPlan(planOf([], {}, 'IPv6')), '-A KUBE-FIREWALL')
  },
)

t.test('IT33 IT34 L07: node ports answer on the chosen addresses only', async (t) => {
  const chosen = states('IPv4', { nodePortAddresses: ['192.0.2.0/24'] }, [
    ...['127.0.0.1', '192.0.2.1', '198.51.100.9'],
  ])
  const cluster = chosen.put(web({ nodePort: 30080, endpoints: 1 })).take()
  const go = walkOf('iptables', cluster)
  t.equal(go('outside', '192.0.2.1:30080'), '10.180.0.1:8080 masqueraded')
  t.equal(go('outside', '198.51.100.9:30080'), 'this node', 'as it is')
  t.equal(go('node', '127.0.0.1:30080'), 'this node')
  t.notMatch(renderPlan(iptablesPlanner(settings)(cluster)), '-A KUBE-FIREWALL', 'IT34')
})

t.test(
  'IT33: an external IP of the node is served before a node port of the same number',
  async (t) => {
    const external = { clusterIp: '10.96.0.11', port: 30080, externalIps: ['192.0.2.1'] }
    const go = walk([
      web({ nodePort: 30080 }),
      service({ name: 'z', ...external, endpoints: ['10.180.0.9'] }),
    ])
    t.equal(go('outside', '192.0.2.1:30080'), '10.180.0.9:8080 masqueraded')
  },
)

t.test('without node ports on localhost, 127.0.0.1 is not a node port address', async (t) => {
  const specs = [web({ nodePort: 30080, endpoints: 1 })]
  const [served, off] = [walk(specs), walk(specs, { 'iptables.localhostNodePorts': false })]
  t.equal(served('node', '127.0.0.1:30080'), '10.180.0.1:8080 masqueraded')
  t.equal(off('node', '127.0.0.1:30080'), 'this node')
  t.equal(off('node', '192.0.2.1:30080'), '10.180.0.1:8080 masqueraded')
})

t.test('IT35: IPv6 Services are served as IPv4 ones, except node ports on ::1', async (t) => {
  const six = state([web({ clusterIp: 'fd00:96::10', nodePort: 30080, endpoints: 1 })], 'IPv6')
  const go = walkOf('iptables', six)
  t.equal(go('pod', '[fd00:96::10]:80'), '[fd00:180::1]:8080')
  t.equal(go('outside', '[fd00:96::10]:80'), '[fd00:180::1]:8080 masqueraded')
  t.equal(go('outside', '[2001:db8::1]:30080'), '[fd00:180::1]:8080 masqueraded')
  t.equal(go('node', '[::1]:30080'), 'this node', 'the kernel cannot route from ::1')
})

t.test('S24: a pod that reaches itself is masqueraded, also without the bpf match', async (t) => {
  const cluster = state([
    web({ endpoints: [{ ip: '10.180.0.1' }, { ip: '10.180.9.9', local: false }] }),
  ])
  const node = { localAddresses: new Set(cluster.node.localAddresses) }
  for (const hasBpf of [true, false]) {
    const rules = iptablesRuleset(iptablesPlanner({ ...settings, hasBpf })(cluster))
    const go = walkBy(cluster, (packet) => walkIptables(rules, packet, node))
    t.equal(go('10.180.0.1', '10.96.0.10:80'), '10.180.0.1:8080 masqueraded or 10.180.9.9:8080')
    // Only endpoints of this node get a rule, because others reach themselves on their own node.
    const itself = hasBpf ? '10.180.9.9:8080 masqueraded' : '10.180.9.9:8080'
    t.equal(go('10.180.9.9', '10.96.0.10:80'), `10.180.0.1:8080 or ${itself}`)
  }
})

t.test('IT42: rules have no comments while there are more than 1,000 endpoints', async (t) => {
  const planner = iptablesPlanner(settings)
  const cluster = states()
  const small = planner(cluster.put(web({ endpoints: 1000 })).take())
  t.match(renderPlan(small), '"default/web:http -> 10.180.0.1:8080"')
  const large = planner(cluster.put(web({ endpoints: 1001 })).take())
  t.notMatch(renderPlan(large), 'default/web')
  const again = planner(cluster.put(web({ endpoints: 3 })).take())
  t.match(renderPlan(again), 'default/web')
})

t.test('hostile names stay inside one quoted comment', async (t) => {
  const name = 'x" -j ACCEPT\n-A INPUT -j ACCEPT'
  const text = renderPlan(planOf([web({ name, portName: '`reboot`', nodePort: 30080 })]))
  const clean = renderPlan(planOf([web({ nodePort: 30080 })]))
  t.equal(text.split('\n').length, clean.split('\n').length, 'as many lines as with a tame name')
  for (const line of text
    .split('\n')
    .filter((one) => one.includes('ACCEPT\\') || one.includes('reboot'))) {
    t.match(line, /--comment ".*x\\" -j ACCEPT\?-A INPUT -j ACCEPT.*" -[mj]/)
  }
})

t.test(
  'an unchanged Service keeps its rules by reference, and a batch holds only what changed',
  async (t) => {
    const planner = iptablesPlanner(settings)
    const other = service({ name: 'other', clusterIp: '10.96.0.11' })
    const cluster = states().put(web(), other)
    const first = planner(cluster.take())
    t.equal(planner(cluster.take()), first, 'nothing changed, same plan')
    const second = planner(cluster.put(web({ endpoints: 3 })).take())
    t.equal(
      second.services.get('default/other:http/TCP'),
      first.services.get('default/other:http/TCP'),
    )
    t.equal(second.fixed, first.fixed)
    const changes = changeBatch(second, first).toString()
    t.notMatch(changes, 'KUBE-SERVICES', 'IT41: an endpoint change leaves the shared chains alone')
    t.equal(changes.split('\n').filter((line) => line.startsWith(':')).length, 1)
    const third = planner(
      cluster
        .put(web({ port: 81, endpoints: 3 }))
        .remove(other)
        .take(),
    )
    t.match(
      changeBatch(third, second).toString(),
      /-I KUBE-SERVICES .*--dport 81.*\n-D KUBE-SERVICES .*--dport 80.*\n-D KUBE-SERVICES .*\n.*-X KUBE-SVC/s,
    )
    t.equal(
      planner(cluster.setLocalAddresses(['127.0.0.1', '192.0.2.1', '192.0.2.7']).take()),
      third,
    )
  },
)

t.test('a shared chain is written anew if many Services are removed at once', async (t) => {
  const planner = iptablesPlanner(settings)
  const specs = Array.from({ length: 40 }, (_, index) =>
    service({ name: `s${index}`, clusterIp: `10.96.1.${index}`, endpoints: 1 }),
  )
  const cluster = states().put(web(), ...specs)
  const before = planner(cluster.take())
  const after = planner(cluster.remove(...specs).take())
  const text = changeBatch(after, before).toString()
  t.match(text, ':KUBE-SERVICES - [0:0]')
  t.notMatch(text, '-D KUBE-SERVICES')
  t.match(text, '-j KUBE-NODEPORTS', 'with its last rule')
})

t.test('the number of rules and chains follows the number of Services and endpoints', async (t) => {
  const table = [
    [0, 0],
    [1, 0],
    [1, 1],
    [10, 10],
    [100, 2],
    [500, 2],
  ] as const
  const counted = table.map(([services, endpoints]) => {
    const plan = planOf(
      Array.from({ length: services }, (_, index) =>
        service({ name: `s${index}`, clusterIp: `10.96.${index >> 8}.${index & 255}`, endpoints }),
      ),
    )
    const chains = renderPlan(plan).match(/^:(?!KUBE-FIREWALL )/gm)?.length
    return { services, endpoints, ...new RuleCounter().count(plan), chains }
  })
  t.same(counted, [
    { services: 0, endpoints: 0, nat: 6, filter: 4, chains: 12 },
    { services: 1, endpoints: 0, nat: 6, filter: 5, chains: 12 },
    { services: 1, endpoints: 1, nat: 9, filter: 4, chains: 13 },
    { services: 10, endpoints: 10, nat: 126, filter: 4, chains: 22 },
    { services: 100, endpoints: 2, nat: 406, filter: 4, chains: 112 },
    { services: 500, endpoints: 2, nat: 2006, filter: 4, chains: 512 },
  ])
})

t.test('IT51: counting only changed rules gives the same number as counting all', async (t) => {
  const planner = iptablesPlanner(settings)
  const counter = new RuleCounter()
  const other = service({ name: 'other', clusterIp: '10.96.0.11', affinitySeconds: 60 })
  const cluster = states().put(web())
  const afresh = (plan: IptablesPlan) => new RuleCounter().count(plan)
  const steps = [
    () => cluster,
    () => cluster.put(other, service({ name: 'none', clusterIp: '10.96.0.12', endpoints: 0 })),
    () => cluster.put(web({ endpoints: 5, nodePort: 30080 })),
    () => cluster.remove(other),
    () => cluster.setLocalAddresses(['127.0.0.1']),
  ]
  for (const step of steps) {
    const plan = planner(step().take())
    t.same(counter.count(plan), afresh(plan))
  }
})

t.test(
  'IT04 IT43: a full sync deletes chains of removed Services, also those of older versions',
  async (t) => {
    const found = parseSaved(`*nat
:PREROUTING ACCEPT [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SVC-AAAAAAAAAAAAAAAA - [0:0]
:KUBE-SEP-AAAAAAAAAAAAAAAA - [0:0]
:KUBE-XLB-AAAAAAAAAAAAAAAA - [0:0]
:DOCKER - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A PREROUTING -m comment --comment "an older wording" -j KUBE-SERVICES
-A PREROUTING -j DOCKER
COMMIT
`)
    const { fixed, services } = planOf([web()])
    const undeletable = new Set(['KUBE-XLB-AAAAAAAAAAAAAAAA'])
    const full = (kernel: ReturnType<typeof parseSaved>) =>
      fullBatches({
        ...{ fixed, services, usesLocalnet: true, undeletable },
        ...{ found: kernel, rulesPerTransaction: Infinity },
      }).join('')
    const text = full(found)
    t.match(text, '-X KUBE-SVC-AAAAAAAAAAAAAAAA')
    t.match(text, '-X KUBE-SEP-AAAAAAAAAAAAAAAA')
    t.match(text, ':KUBE-XLB-AAAAAAAAAAAAAAAA - [0:0]')
    t.notMatch(text, '-X KUBE-XLB', 'somebody jumps to it')
    t.notMatch(text, '-I PREROUTING', 'IT04: the jump is there')
    t.match(text, '-D PREROUTING -m comment --comment "an older wording" -j KUBE-SERVICES')
    t.match(text, '-I OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES')
    t.notMatch(text, 'DOCKER')
    const kubelet = parseSaved(
      '*filter\n:INPUT ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n:KUBE-FIREWALL - [0:0]\n' +
        '-A INPUT -j KUBE-FIREWALL\n-A OUTPUT -j KUBE-FIREWALL\n' +
        '-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment "block incoming localnet connections" ' +
        '-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP\nCOMMIT\n',
    )
    t.notMatch(full(kubelet), 'KUBE-FIREWALL', 'IT11: kubelet’s chain is complete, nothing to add')
  },
)

/** What other versions of kube-proxy and kubelet leave, besides what the tests above remove. */
const olderVersions = `*mangle
:PREROUTING ACCEPT [0:0]
:KUBE-IPTABLES-HINT - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
:KUBE-PROXY-CANARY - [0:0]
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:KUBE-KUBELET-CANARY - [0:0]
:KUBE-MARK-DROP - [0:0]
:KUBE-FW-AAAAAAAAAAAAAAAA - [0:0]
:KUBE-XLB-AAAAAAAAAAAAAAAA - [0:0]
:KUBE-SVC-MARKNONPODSOURCE - [0:0]
-A KUBE-FW-AAAAAAAAAAAAAAAA -j KUBE-MARK-DROP
-A KUBE-XLB-AAAAAAAAAAAAAAAA -j KUBE-MARK-DROP
-A KUBE-SVC-MARKNONPODSOURCE -s 10.1.0.0/16 -j RETURN
COMMIT
*filter
:INPUT ACCEPT [0:0]
:KUBE-FIREWALL - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
-A INPUT -j KUBE-FIREWALL
-A INPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP
COMMIT
`

t.test('L18 IT50: chains of older versions are deleted, and those of kubelet stay', async (t) => {
  const found = parseSaved(olderVersions)
  const { fixed, services } = planOf([web()])
  const undeletable = new Set<string>()
  const kept = { fixed, services, usesLocalnet: false, undeletable, rulesPerTransaction: Infinity }
  for (const text of [
    cleanupBatch(parseSaved(olderVersions)).toString(),
    fullBatches({ ...kept, found }).join(''),
  ]) {
    for (const name of ['FW-AAAAAAAAAAAAAAAA', 'XLB-AAAAAAAAAAAAAAAA', 'SVC-MARKNONPODSOURCE']) {
      t.match(text, `-X KUBE-${name}`)
    }
    t.match(text, '-X KUBE-MARK-DROP', 'kube-proxy made it, nobody filled it')
    t.match(text, '-D INPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES')
    t.notMatch(text, /KUBELET|HINT|KUBE-FIREWALL/)
  }
  const filled = olderVersions.replace(
    '-A KUBE-FW-',
    '-A KUBE-MARK-DROP -j MARK --set-xmark 0x8000/0x8000\n-A KUBE-FW-',
  )
  t.notMatch(cleanupBatch(parseSaved(filled)).toString(), 'MARK-DROP', 'kubelet filled it')
  t.notMatch(fullBatches({ ...kept, found: parseSaved(filled) }).join(''), 'MARK-DROP')
})

t.test(
  'a full sync of many rules is split between Services, and the jumps to them come last',
  async (t) => {
    const specs = Array.from({ length: 10 }, (_, index) =>
      service({
        name: `s${index}`,
        clusterIp: `10.96.1.${index}`,
        affinitySeconds: 60,
        nodePort: 30000 + index,
      }),
    )
    const { fixed, services } = planOf(specs)
    const all = {
      fixed,
      services,
      usesLocalnet: true,
      undeletable: new Set<string>(),
      found: [],
    }
    const one = fullBatches({ ...all, rulesPerTransaction: Infinity })
    const cut = fullBatches({ ...all, rulesPerTransaction: 20 })
    t.equal(one.length, 1)
    t.ok(cut.length > 3)
    const sortedLines = (text: string) => [...new Set(text.split('\n'))].sort()
    t.same(sortedLines(cut.join('')), sortedLines(one.join('')), 'in all, the same')
    t.match(cut[0]?.toString(), ':KUBE-MARK-MASQ', 'what Services jump to comes first')
    for (const [index, batch] of cut.entries()) {
      const text = batch.toString()
      const isLast = index === cut.length - 1
      t.equal(text.includes(':KUBE-SERVICES'), isLast)
      t.equal(text.includes('PREROUTING'), isLast)
      const declared = new Set(text.match(/^:KUBE-S[VE][CP]-\S+/gm)?.map((line) => line.slice(1)))
      for (const [, target = ''] of text.matchAll(/-j (KUBE-(?:SVC|SEP)-\S+)$/gm)) {
        if (!isLast) t.ok(declared.has(target), 'nothing jumps to what comes later')
      }
    }
  },
)

t.test('IT50: cleanup removes only what kube-proxy wrote', async (t) => {
  const text = cleanupBatch(
    parseSaved(`*nat
:POSTROUTING ACCEPT [0:0]
:CNI - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-SEP-AAAAAAAAAAAAAAAA - [0:0]
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A POSTROUTING -j CNI
-A CNI -j KUBE-MARK-MASQ
COMMIT
*filter
:INPUT ACCEPT [0:0]
:KUBE-FIREWALL - [0:0]
-A INPUT -j KUBE-FIREWALL
COMMIT
`),
  ).toString()
  t.equal(
    text,
    `*nat
:KUBE-MARK-MASQ - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-SEP-AAAAAAAAAAAAAAAA - [0:0]
-D POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-X KUBE-POSTROUTING
-X KUBE-SEP-AAAAAAAAAAAAAAAA
COMMIT
`,
  )
})

t.test(
  'cleanup of a kernel without the backend of installed programs has nothing to do',
  async (t) => {
    const log = { debug() {}, info() {}, warn() {}, error() {} }
    const openAccounts = () => Promise.reject(new Error('none'))
    const answers = (stderr: string) => () => Promise.resolve({ code: 1, stdout: '', stderr })
    const lacks = answers('iptables: Failed to initialize nft: Protocol not supported')
    await cleanupAll(log, { run: lacks, openAccounts })
    const forbids = answers('iptables: Permission denied (you must be root)')
    await t.rejects(cleanupAll(log, { run: forbids, openAccounts }), /you must be root/)
  },
)

t.test(
  'a refused Service is found among many, also if the tool does not name its line',
  async (t) => {
    const specs = Array.from({ length: 50 }, (_, index) =>
      service({ name: `s${index}`, clusterIp: `10.96.1.${index}`, endpoints: 1 }),
    )
    const { fixed, services } = planOf(specs)
    const all = [...services.values()]
    const bad = new Set([all[7]!, all[33]!, all[34]!])
    for (const namesLine of [true, false]) {
      let attempts = 0
      const attempt = (batch: Batch) => {
        attempts++
        const input = batch.toString().split('\n')
        const at = input.findIndex((line) => ownedBy(line, bad))
        if (at < 0) return Promise.resolve()
        const line = namesLine ? at : input.indexOf('COMMIT')
        const error = new IptablesError('failed', 'refused', {
          line: line + 1,
          lineText: input[line],
        })
        return Promise.reject(error)
      }
      const failed = await findRefused(all, { fixed, attempt, firstSuspect: undefined })
      t.same(new Set(failed.map(({ rules }) => rules)), bad)
      t.ok(attempts < 30, `${attempts} attempts`)
    }
    const everything = () => Promise.reject(new IptablesError('failed', 'refused', { line: 1 }))
    await t.rejects(
      findRefused(all.concat(all, all), { fixed, attempt: everything, firstSuspect: undefined }),
    )
  },
)

function ownedBy(line: string, services: ReadonlySet<ServiceRules>): boolean {
  const error = new IptablesError('failed', '', { line: 1, lineText: line })
  return ownerOf([...services], error) !== undefined
}

t.test('IT46: every edit of our rules is found, but other wording is no edit', async (t) => {
  const plan = planOf([web({ nodePort: 30080 }), service({ name: 'w', clusterIp: '10.96.0.11' })])
  const text = withBuiltins(renderPlan(plan))
  const differences = async (kernel: string, after: Content = plan) => {
    const verification = new Verification(plan, plan.usesLocalnet)
    await verification.prepare()
    new SavedReader(verification).push(kernel)
    return verification.differences(after)
  }
  const check = async (...read: Parameters<typeof differences>) =>
    (await differences(...read)).map(({ chain, what }) => `${chain} ${what}`)
  t.same(await check(text), [])
  const asSaved = text
    .replaceAll('--or-mark 0x4000', '--set-xmark 0x4000/0x4000')
    .replaceAll('--xor-mark 0x4000', '--set-xmark 0x4000/0x0')
    .replaceAll('--comment "default/web:http"', '--comment default/web:http')
    .replaceAll('0.33333333349', '0.3333333333')
  t.not(asSaved, text)
  t.same(await check(asSaved), [], 'other words for the same rules')
  const twice = asSaved.replace(/-A KUBE-NODEPORTS -p tcp.*\n/, '$&$&')
  t.match(await check(twice), [/^nat KUBE-NODEPORTS has one more: -p tcp/])
  const svc = /KUBE-SVC-\S+/.exec(text)?.[0] ?? ''
  const lastOfSvc = new RegExp(`-A ${svc} -p tcp -m comment --comment \\S+ \\S+ \\S+ -j DNAT.*\n`)
  const edits: [RegExp, string, string | RegExp][] = [
    [/-A KUBE-SVC-.*-j DNAT.*\n/, '', /^nat KUBE-SVC-\S+ has .*, not .*--probability/],
    [/-A PREROUTING.*\n/, '', /^nat PREROUTING lacks .*-j KUBE-SERVICES/],
    [/(-A PREROUTING) (.*\n)/, '$1 -s 192.0.2.1/32 $2', /^nat PREROUTING lacks/],
    [/-A PREROUTING .*\n/, '$&$&', /^nat PREROUTING has one more: .*-j KUBE-SERVICES$/],
    [/-A FORWARD .*\n/, '$&-A FORWARD -j KUBE-FORWARD\n', /^filter FORWARD has one more: -j/],
    [
      /-A INPUT .*\n/,
      '$&-A INPUT -j KUBE-SERVICES\n',
      'filter INPUT has one more: -j KUBE-SERVICES',
    ],
    [/\*nat\n/, '$&:INPUT ACCEPT\n-A INPUT -j KUBE-SERVICES\n', /^nat INPUT has one more: -j/],
    [/-A KUBE-SERVICES -d.*\n/, '', /^nat KUBE-SERVICES lacks -d 10.96.0.1/],
    [/(-A KUBE-SERVICES) -d 10.96.0.10\/32/, '$1 -d 10.96.0.66/32', /^nat KUBE-SERVICES lacks/],
    [
      /(?=-A KUBE-SERVICES -d)/,
      '-A KUBE-SERVICES -j RETURN\n',
      /KUBE-SERVICES has one more: -j RET/,
    ],
    [lastOfSvc, `$&-A ${svc} -j RETURN\n`, `nat ${svc} has one more: -j RETURN`],
    [/-A KUBE-NODEPORTS -p tcp.*\n/, '$&$&', /^nat KUBE-NODEPORTS has one more: -p tcp/],
    [/(-A KUBE-SERVICES -m .*\n)/, '', /^nat KUBE-SERVICES lacks .*-j KUBE-NODEPORTS/],
    [/10\.180\.0\.2:8080\n/, '6.6.6.6:1\n', /^nat KUBE-SVC-\S+ has .* 6.6.6.6:1, not/],
    [/probability 0.5/, 'probability 0.4', /^nat KUBE-SVC-\S+ has .* 0.4/],
    [/:KUBE-FORWARD.*\n/, '', 'filter KUBE-FORWARD is gone'],
    [/:KUBE-PROXY-FIREWALL.*\n/, '', 'filter KUBE-PROXY-FIREWALL is gone'],
    [/-A KUBE-FIREWALL.*\n/, '', /^filter KUBE-FIREWALL lacks ! -s 127.0.0.0\/8/],
  ]
  for (const [what, by, expected] of edits) {
    const edited = text.replace(what, by)
    t.not(edited, text)
    const [first] = await check(edited)
    t.match(first, expected, String(what))
  }
  const tail = /-A KUBE-SERVICES -m .*\n/.exec(text)?.[0] ?? ''
  const moved = text.replace(tail, '').replace('-A KUBE-SERVICES', `${tail}-A KUBE-SERVICES`)
  t.match((await check(moved))[0], /^nat KUBE-SERVICES does not end with/, 'IT33')
  const added = text.replace(/:KUBE-FORWARD.*\n/, '$&:KUBE-SVC-OLD - [0:0]\n:CNI-A - [0:0]\n')
  t.same(await check(added), ['filter KUBE-SVC-OLD belongs to no Service'])
  const usedRule = '$&-A CNI-A -j KUBE-SVC-OLD\n'
  t.same(await check(added.replace(/-A FORWARD .*\n/, usedRule)), [], 'nobody can delete it')
  const inOtherWords: [string, boolean][] = [
    [text.replace(/10\.180\.0\.2:8080\n/, '6.6.6.6:1\n'), true],
    [text.replace(/(-A KUBE-SERVICES) -d 10.96.0.10\/32/, '$1 -d 10.96.0.66/32'), true],
    [text.replace(/(-A PREROUTING) (.*\n)/, '$1 -s 192.0.2.1/32 $2'), true],
    [text.replace(/-A KUBE-SVC-.*-j DNAT.*\n/, ''), false],
    [text.replace(/-A KUBE-SERVICES -d.*\n/, ''), false],
    [text.replace(/-A PREROUTING.*\n/, ''), false],
    [text.replace(/:KUBE-FORWARD.*\n/, ''), false],
    [moved, false],
  ]
  for (const [kernel, expected] of inOtherWords) {
    t.equal((await differences(kernel))[0]?.mayBeWording, expected)
  }
})

t.test('IT33: each jump to the node ports is found if it comes too early', async (t) => {
  const own = { nodePortAddresses: ['192.0.2.0/24'] }
  const chosen = states('IPv4', own, ['192.0.2.1', '192.0.2.2'])
  const plan = iptablesPlanner(settings)(chosen.put(web({ nodePort: 30080 })).take())
  const text = withBuiltins(renderPlan(plan))
  const jumps = text.match(/-A KUBE-SERVICES .*-j KUBE-NODEPORTS\n/g) ?? []
  t.equal(jumps.length, 2)
  const found = async (kernel: string) => {
    const verification = new Verification(plan, plan.usesLocalnet)
    await verification.prepare()
    new SavedReader(verification).push(kernel)
    return verification.differences(plan).map(({ what }) => what)
  }
  t.same(await found(text), [])
  t.same(await found(text.replace(jumps.join(''), jumps.toReversed().join(''))), [])
  for (const jump of jumps) {
    const moved = text.replace(jump, '').replace('-A KUBE-SERVICES', `${jump}-A KUBE-SERVICES`)
    t.match(await found(moved), [/^does not end with -d 192/])
  }
})

t.test('a sync while the rules are read is not taken for a foreign change', async (t) => {
  const planner = iptablesPlanner(settings)
  const other = service({ name: 'other', clusterIp: '10.96.0.11' })
  const cluster = states().put(web(), other)
  const before = planner(cluster.take())
  const late = service({ name: 'late', clusterIp: '10.96.0.12' })
  const after = planner(
    cluster
      .put(web({ endpoints: 3 }), late)
      .remove(other)
      .take(),
  )
  const check = async (kernel: string) => {
    const verification = new Verification(before, before.usesLocalnet)
    await verification.prepare()
    new SavedReader(verification).push(withBuiltins(kernel))
    return verification.differences(after).map(({ chain }) => chain)
  }
  t.same(await check(renderPlan(before)), [])
  t.same(await check(renderPlan(after)), [])
  const edited = renderPlan(after).replace(/-A KUBE-SERVICES -d 10.96.0.10.*\n/, '')
  t.same(
    await check(edited),
    ['nat KUBE-SERVICES'],
    'but what was there all the time must be there',
  )
})

/** Adds the built-in chains, which iptables-save shows and a restore does not declare. */
function withBuiltins(text: string): string {
  return text
    .replace('*nat\n', '*nat\n:PREROUTING ACCEPT\n:OUTPUT ACCEPT\n:POSTROUTING ACCEPT\n')
    .replace('*filter\n', '*filter\n:INPUT ACCEPT\n:FORWARD ACCEPT\n:OUTPUT ACCEPT\n')
}

t.test('the batch for an empty kernel has every rule of the plan', async (t) => {
  const plan = planOf([web()])
  const empty = { fixed: { chains: [], tail: [] }, services: PersistentMap.empty<ServiceRules>() }
  const text = changeBatch(plan, empty).toString()
  const { nat, filter } = new RuleCounter().count(plan)
  t.equal(text.split('\n').filter((line) => /^-[AI] /.test(line)).length, nat + filter)
})

t.test('every behaviour of iptables mode is named by a test or a case', async (t) => {
  const folders = ['test/modes', 'test/kernel', 'test/cases', 'test/observe']
  const names = folders
    .flatMap((folder) => readdirSync(folder).map((file) => `${folder}/${file}`))
    .filter((file) => /(iptables.*|observer)\.test\.ts$|\.yaml$/.test(file))
    .flatMap((file) => readFileSync(file, 'utf8').match(nameOfTest) ?? [])
    .join('\n')
  const named = new Set<number>()
  for (const [, from = '', to = from] of names.matchAll(/\bIT(\d\d)(?:-IT(\d\d))?\b/g)) {
    for (let id = Number(from); id <= Number(to); id++) named.add(id)
  }
  const behaviours = [
    [1, 11],
    [20, 35],
    [40, 51],
  ].flatMap(([first = 0, last = 0]) =>
    Array.from({ length: last - first + 1 }, (_, index) => first + index),
  )
  t.same(
    behaviours.filter((id) => !named.has(id)),
    [],
    'none without',
  )
})

/** The names of tests and cases, without the messages of assertions. */
const nameOfTest = /(?:\.test|onNode|lockTest\?\.)\(\s*'[^']*'|^\s*-? ?name: .*$/gm

void t.test('a lock that is held for minutes is waited for, and said once a minute', async (t) => {
  const warned: object[] = []
  const log = { debug() {}, info() {}, warn: (fields: object) => warned.push(fields), error() {} }
  let time = 0
  const goesOn = waitForLock(
    log,
    () => 60_000,
    () => time,
  )
  const asked = (waitedMs: number) =>
    goesOn({ action: 'restore', waitedMs, holder: 'flock (pid 7)' })
  for (; time < 180_000; time += 5_000) {
    t.ok(asked(time % 60_000))
    t.ok(asked(time % 60_000), 'another program of ours waits as well')
  }
  t.notOk(asked(60_000), 'the sync fails then, and is tried again')
  t.equal(warned.length, 4)
  t.match(warned[0], { holder: 'flock (pid 7)', action: 'restore' })
})

t.test(
  'with --flows what is refused or dropped goes to a chain that logs, and no rule is added elsewhere',
  async (t) => {
    const specs = [
      service({ name: 'empty', endpoints: 0, nodePort: 30001 }),
      service({
        ...{ name: 'away', clusterIp: '10.96.0.11', internalPolicyLocal: true },
        endpoints: [{ ip: '10.180.0.9', local: false }],
      }),
      service({
        ...{ name: 'guarded', clusterIp: '10.96.0.12' },
        ...{ loadBalancerIps: ['203.0.113.1'], sourceRanges: ['10.0.0.0/8'] },
      }),
    ]
    const lines = (logsRefused: boolean, hasLog = true) =>
      renderPlan(planOf(specs, { logsRefused, hasLog })).split('\n')
    t.same(lines(true, false), lines(false), 'not where the kernel has no such target')
    const own = /^(:|-A )KUBE-SVC-(REFUSED|DROPPED|BLOCKED)ANDLOGGED /
    const logging = lines(true)
    t.same(
      logging.filter((line) => !own.test(line)),
      lines(false).map((line) =>
        line
          .replace(/^(-A KUBE-(EXTERNAL-)?SERVICES .*) REJECT$/, '$1 KUBE-SVC-REFUSEDANDLOGGED')
          .replace(/^(-A KUBE-(EXTERNAL-)?SERVICES .*) DROP$/, '$1 KUBE-SVC-DROPPEDANDLOGGED')
          .replace(/^(-A KUBE-PROXY-FIREWALL .*) DROP$/, '$1 KUBE-SVC-BLOCKEDANDLOGGED'),
      ),
    )
    t.same(
      logging.filter((line) => line.startsWith('-A KUBE-SVC-') && own.test(line)),
      [
        '-A KUBE-SVC-REFUSEDANDLOGGED -j NFLOG --nflog-group 10249',
        '-A KUBE-SVC-REFUSEDANDLOGGED -j REJECT',
        '-A KUBE-SVC-DROPPEDANDLOGGED -j NFLOG --nflog-prefix "no local endpoint" --nflog-group 10249',
        '-A KUBE-SVC-DROPPEDANDLOGGED -j DROP',
        '-A KUBE-SVC-BLOCKEDANDLOGGED -j NFLOG --nflog-prefix "not in loadBalancerSourceRanges" --nflog-group 10249',
        '-A KUBE-SVC-BLOCKEDANDLOGGED -j DROP',
      ],
    )
    const go = walk(specs, { 'flows.enabled': true })
    t.equal(go('outside', '10.96.0.10:80'), 'refused')
    t.equal(go('outside', '192.0.2.1:30001'), 'refused')
    t.equal(go('pod', '10.96.0.11:80'), 'dropped')
    t.equal(go('outside', '203.0.113.1:80'), 'dropped')
  },
)

t.test('a look at the rules that ends together with this process is no news', async (t) => {
  for (const [isEnding, warned] of [
    [false, 1],
    [true, 0],
  ] as const) {
    const stop = new AbortController()
    const logged: unknown[] = []
    const told = (...line: unknown[]) => void logged.push(line)
    let looks = 0
    const iptables = {
      listChain: () => {
        // The failure is there in the same turn, before this process hears the signal.
        if (isEnding || ++looks === 2) setImmediate(() => stop.abort())
        return Promise.reject(new Error('run iptables: killed by SIGINT'))
      },
    }
    const rules = { settled: () => Promise.resolve({}), iptables } as unknown as FamilyRules
    const log = { debug: () => undefined, info: told, warn: told, error: told }
    const options = { rules, foreign: new ForeignCommits(), log, periodMs: () => 4 }
    await watchRules({ ...options, changed: told }, stop.signal)
    t.equal(logged.length, warned)
  }
})

t.test('IT49: a family is not left out for want of descriptors or processes', async (t) => {
  const log = { debug: () => 0, info: () => 0, warn: () => 0, error: () => 0 }
  const openWith = (cause: Error) =>
    openFamilies(() => iptablesSettings(testConfig), ['IPv4', 'IPv6'], log, {
      backend: 'nft',
      openAccounts: () => Promise.reject(new Error('none')),
      openGeneration: () => Promise.resolve(undefined),
      run: (file, args) => {
        if (file.startsWith('ip6') && file.endsWith('-restore'))
          return Promise.reject(new IptablesError('failed', `run ${file}`, { cause }))
        const stdout = args.includes('--version') ? 'iptables v1.8.9 (nf_tables)' : ''
        return Promise.resolve({ code: 0, stdout, stderr: '' })
      },
    })
  for (const code of ['EMFILE', 'EAGAIN']) {
    const opening = openWith(Object.assign(new Error(code), { code }))
    await t.rejects(opening, { message: /^start iptables mode: run ip6tables/ })
  }
  const { families } = await openWith(new Error('it crashed'))
  t.same([...families.keys()], ['IPv4'])
})
