import t from 'tap'
import { KernelError } from '../../lib/errors.js'
import { IpSets } from '../../lib/kernel/ipset.js'
import { parseCidr } from '../../lib/state/ip.js'
import { cleanUp } from '../../lib/modes/ipvs/cleanup.js'
import { ipvsPlanner } from '../../lib/modes/ipvs/plan.js'
import { Rules } from '../../lib/modes/ipvs/rules.js'
import { renderChanges, renderPlan } from '../../lib/modes/ipvs/render.js'
import { sysctlWishes, timeoutsOf } from '../../lib/modes/ipvs/settings.js'
import { FakeIpvsKernel } from '../support/fake-ipvs-kernel.js'
import { FakeNode, FakeTables } from '../support/fake-ipvs-node.js'
import { ipvsBehaviour } from '../support/ipvs-behaviour.js'
import { service, states, testSettings, type ServiceSpec } from '../support/states.js'
import { walkOf } from '../support/walks.js'
import type { DetectLocal } from '../../lib/state/node-view.js'

const silent = {
  debug: () => undefined,
  info: () => undefined,
  warn: () => undefined,
  error: () => undefined,
}
const web = service({ endpoints: ['10.180.0.1', '10.180.0.2'] })
const planner = () => ipvsPlanner(testSettings)

void t.test('the fake kernel behaves as the real kernel in test/uml', (t) =>
  ipvsBehaviour(t, new FakeIpvsKernel()),
)

const planOf = (...specs: readonly ServiceSpec[]) =>
  planner()(
    states()
      .put(...specs)
      .take(),
  )
const rendered = (...specs: readonly ServiceSpec[]) => renderPlan(planOf(...specs))
/** Where packets end under the plan of these Services. */
const walk = (...specs: readonly ServiceSpec[]) =>
  walkOf(
    'ipvs',
    states()
      .put(...specs)
      .take(),
  )

void t.test('the plan of a Service', async (t) => {
  const loud = service({
    nodePort: 30080,
    externalIps: ['203.0.113.1', '192.0.2.1'],
    loadBalancerIps: ['203.0.113.2'],
    affinitySeconds: 600,
    endpoints: ['10.180.0.1', { ip: '10.180.1.2', local: false, weight: 5 }],
  })

  await t.test('IP01, IP02, IP05, IP10-IP16: every address leads to the endpoints', (t) => {
    const other = { name: 'other', clusterIp: '10.96.0.11', endpoints: 1 }
    const sctp = service({ ...other, protocol: 'SCTP', nodePort: 30090 })
    const go = walk(loud, sctp)
    const kept = '10.180.0.1:8080 or 10.180.1.2:8080'
    const masqueraded = '10.180.0.1:8080 masqueraded or 10.180.1.2:8080 masqueraded'
    t.equal(go('pod', '10.96.0.10:80'), kept)
    t.equal(go('outside', '10.96.0.10:80'), masqueraded)
    for (const to of ['203.0.113.1:80', '203.0.113.2:80', '192.0.2.1:30080']) {
      for (const from of ['pod', 'outside', 'node'])
        t.equal(go(from, to), masqueraded, `${from} to ${to}`)
    }
    t.equal(go('outside', '192.0.2.1:30090', 'SCTP'), '10.180.0.1:8080 masqueraded')
    t.equal(go('node', '127.0.0.1:30080'), 'this node', 'IP21: no node port on loopback')
    t.end()
  })

  await t.test('IP21: a device with a link-local address of IPv6 changes nothing', (t) => {
    const web6 = service({ clusterIp: 'fd00:96::10', nodePort: 30080 })
    const cluster = states('IPv6').put(web6)
    const plan = planner()
    const first = plan(cluster.take())
    t.match(renderPlan(first), '-A -t [2001:db8::1]:30080 -s rr')
    // Each pod brings such a device.
    const ofPod = ['::1', '2001:db8::1', 'fe80::a0dd:13ff:fef5:c8f7']
    t.equal(plan(cluster.setLocalAddresses(ofPod).take()), first)
    t.end()
  })

  await t.test('IP01: endpoints get connections by their weight', (t) => {
    const weighted = walk({ ...loud, options: { 'ipvs-scheduler': 'wrr' } })
    t.equal(weighted('pod', '10.96.0.10:80'), '16.7 % 10.180.0.1:8080, 83.3 % 10.180.1.2:8080')
    t.end()
  })

  await t.test(
    'IP02, IP18: other ports of bound addresses refuse, but not ports of the node',
    (t) => {
      const go = walk(loud)
      for (const ip of ['10.96.0.10', '203.0.113.1', '203.0.113.2']) {
        t.equal(go('outside', `${ip}:81`), 'refused', ip)
      }
      t.equal(go('outside', '192.0.2.1:81'), 'this node', 'an external IP that the node has anyway')
      t.end()
    },
  )

  await t.test('IP10: a pod of this node that reaches itself is masqueraded', (t) => {
    const go = walk(loud)
    const itself = '10.180.0.1:8080 masqueraded or 10.180.1.2:8080'
    t.equal(go('10.180.0.1', '10.96.0.10:80'), itself)
    t.equal(go('10.180.1.2', '10.96.0.10:80'), '10.180.0.1:8080 or 10.180.1.2:8080')
    t.end()
  })

  await t.test('IP14, IP23, S35: source ranges hold for the node, too', (t) => {
    const guarded = (...sourceRanges: string[]) =>
      service({ loadBalancerIps: ['203.0.113.2'], sourceRanges, endpoints: 1 })
    const go = walk(guarded('198.51.100.0/24', '198.51.101.7/32'))
    const served = '10.180.0.1:8080 masqueraded'
    t.equal(go('198.51.100.9', '203.0.113.2:80'), served)
    t.equal(go('198.51.101.7', '203.0.113.2:80'), served)
    for (const from of ['198.51.101.8', 'pod', 'node'])
      t.equal(go(from, '203.0.113.2:80'), 'dropped', from)
    const withNode = guarded('192.0.2.0/24')
    t.equal(walk(withNode)('node', '203.0.113.2:80'), served)
    t.end()
  })

  await t.test('IP12, IP15, IP17, IP25: policy Local uses local endpoints, if any', (t) => {
    const local = {
      externalPolicyLocal: true,
      nodePort: 30080,
      externalIps: ['203.0.113.1'],
      loadBalancerIps: ['203.0.113.2'],
      healthCheckNodePort: 32000,
    }
    const remote = { ip: '10.180.1.2', local: false }
    const both = service({ ...local, endpoints: ['10.180.0.1', remote] })
    const outside = ['203.0.113.1:80', '203.0.113.2:80', '192.0.2.1:30080']
    for (const to of outside)
      t.equal(walk(both)('outside', to), '10.180.0.1:8080', `${to}, which sees the sender`)
    t.equal(walk(both)('pod', '10.96.0.10:80'), '10.180.0.1:8080 or 10.180.1.2:8080')
    t.equal(walk(both)('outside', '192.0.2.1:32000'), 'let in')
    // Without a local endpoint all are used, and their answers do not pass this node.
    const fallback = walk(service({ ...local, endpoints: [remote] }))
    for (const to of outside)
      t.equal(fallback('outside', to), '10.180.1.2:8080 answers past this node', to)
    t.equal(fallback('pod', '203.0.113.2:80'), '10.180.1.2:8080')
    const inside = walk(service({ internalPolicyLocal: true, endpoints: [remote] }))
    t.equal(inside('pod', '10.96.0.10:80'), '10.180.1.2:8080')
    t.end()
  })

  await t.test('S19: without endpoints there is a server that refuses', (t) => {
    t.equal(walk(service({ endpoints: [] }))('pod', '10.96.0.10:80'), 'refused')
    t.end()
  })

  await t.test(
    'FL01: with --flows what finds no endpoint, or is in no range, is logged first',
    (t) => {
      const empty = service({ name: 'empty', endpoints: 0, nodePort: 30081 })
      const full = service({ name: 'full', clusterIp: '10.96.0.11', endpoints: 1 })
      const state = states().put(empty, full).take()
      const lines = (logsRefused: boolean) =>
        renderPlan(ipvsPlanner({ ...testSettings, logsRefused })(state)).split('\n')
      const without = new Set(lines(false))
      const group = '-j NFLOG --nflog-group 10249'
      t.same(
        lines(true).filter((line) => !without.has(line)),
        [
          'add KUBE-NO-ENDPOINTS 10.96.0.10,tcp:80 -exist',
          'add KUBE-NO-ENDPOINTS 192.0.2.1,tcp:30081 -exist',
          '-A KUBE-SOURCE-RANGES-FIREWALL -j NFLOG --nflog-prefix "not in loadBalancerSourceRanges" --nflog-group 10249',
          '-A KUBE-SERVICES -m comment --comment "Services without endpoints" -m set --match-set KUBE-NO-ENDPOINTS dst,dst -j KUBE-IPVS-REFUSED',
          `-A KUBE-IPVS-REFUSED -m set --match-set KUBE-LOAD-BALANCER-SOURCE-CIDR dst,dst,src ${group}`,
          `-A KUBE-IPVS-REFUSED -m set --match-set KUBE-LOAD-BALANCER-SOURCE-IP dst,dst,src ${group}`,
          '-A KUBE-IPVS-REFUSED -m set --match-set KUBE-LOAD-BALANCER-FW dst,dst -j RETURN',
          `-A KUBE-IPVS-REFUSED ${group}`,
          '-A KUBE-SOURCE-RANGES-FIREWALL -j NFLOG --nflog-prefix "not in loadBalancerSourceRanges" --nflog-group 10249',
        ],
      )
      t.end()
    },
  )

  await t.test('E21: an endpoint that terminates but still serves has weight 0', (t) => {
    const leaving = { ip: '10.180.0.9', ready: false, serving: true, terminating: true }
    const gone = { ip: '10.180.0.8', ready: false, serving: false, terminating: true }
    const draining = (scheduler: string) =>
      rendered(
        service({
          protocol: 'UDP',
          options: { 'ipvs-scheduler': scheduler },
          endpoints: ['10.180.0.1', leaving, gone],
        }),
      )
    t.match(draining('rr'), '-a -u 10.96.0.10:80 -r 10.180.0.9:8080 -m -w 0\n')
    t.notMatch(draining('rr'), '10.180.0.8')
    t.match(draining('sh'), '-s sh -b sh-fallback\n', 'which sh passes over')
    t.notMatch(draining('dh'), '10.180.0.9', 'and dh cannot')
    const last = rendered(service({ endpoints: [leaving] }))
    t.match(last, '-r 10.180.0.9:8080 -m -w 1\n', 'E11: the last ones are used all the same')
    t.end()
  })

  await t.test('kube-proxy-ts/balance chooses scheduler and weights', (t) => {
    const endpoints = [
      { ip: '10.180.0.1', weight: 3 },
      { ip: '10.180.0.2', weight: 5 },
    ]
    const of = (balance: string, more = {}) =>
      rendered(service({ options: { balance, ...more }, endpoints }))
    t.match(of('round-robin'), /-s rr\n/)
    t.match(of('least-connections'), /-s lc\n/)
    t.match(of('weighted'), /-s wrr\n/)
    t.match(of('weighted'), /-r 10\.180\.0\.1:8080 -m -w 3\n.*-r 10\.180\.0\.2:8080 -m -w 5\n/)
    t.match(of('source-hash'), /-s sh -b sh-fallback\n/)
    t.match(of('maglev'), /-s mh -b mh-fallback\n/, 'the port of the client does not count')
    t.match(of('first'), /-s fo\n/)
    t.match(of('first'), /-r 10\.180\.0\.1:8080 -m -w 1\n.*-r 10\.180\.0\.2:8080 -m -w 2\n/)
    t.notMatch(of('source-hash'), /-w [35]/, 'only what is weighted looks at weights')
    t.match(of('weighted', { 'ipvs-scheduler': 'sed' }), /-s sed\n/, 'the word of this mode wins')
    t.end()
  })

  await t.test('IP03: the scheduler is that of the annotation, or of the node', (t) => {
    const chosen = (value: string) => rendered(service({ options: { 'ipvs-scheduler': value } }))
    t.match(chosen('lc'), '-A -t 10.96.0.10:80 -s lc\n')
    t.match(chosen('mh'), '-A -t 10.96.0.10:80 -s mh -b mh-fallback,mh-port\n')
    for (const nonsense of ['nonsense', 'rr\n-A -t 1.2.3.4:1', '']) {
      t.match(chosen(nonsense), '-A -t 10.96.0.10:80 -s rr\n')
    }
    const plan = ipvsPlanner({ ...testSettings, scheduler: 'wlc' })
    t.match(renderPlan(plan(states().put(web).take())), '-A -t 10.96.0.10:80 -s wlc\n')
    t.end()
  })

  await t.test('IP19: IPv6 Services are reached through sets of their own names', (t) => {
    const six = service({
      ...{ clusterIp: 'fd00:96::a', nodePort: 30080, endpoints: 1 },
      ...{ loadBalancerIps: ['2001:db8:1::1'], sourceRanges: ['2001:db8::/64'] },
    })
    const cluster = states('IPv6').put(six).take()
    const go = walkOf('ipvs', cluster)
    t.equal(go('pod', '[fd00:96::a]:80'), '[fd00:180::1]:8080')
    t.equal(go('outside', '[2001:db8:1::1]:80'), '[fd00:180::1]:8080 masqueraded')
    t.equal(go('pod', '[2001:db8:1::1]:80'), 'dropped')
    t.equal(go('::1', '[2001:db8::1]:30080'), '[fd00:180::1]:8080', 'IP24')
    // The kernel cuts longer names, so the names are cut here.
    t.match(renderPlan(planner()(cluster)), 'create KUBE-6-LOAD-BALANCER-SOURCE-CID hash')
    t.end()
  })

  await t.test('IP13: load-balancer addresses combine source ranges and policy Local', (t) => {
    const balanced = service({
      ...{ loadBalancerIps: ['203.0.113.2'], externalPolicyLocal: true },
      ...{ sourceRanges: ['198.51.100.0/24'], endpoints: ['10.180.0.1'] },
    })
    t.equal(walk(balanced)('198.51.100.9', '203.0.113.2:80'), '10.180.0.1:8080')
    t.equal(walk(balanced)('outside', '203.0.113.2:80'), 'dropped')
    t.end()
  })

  await t.test('IP24: packets from loopback are not masqueraded', (t) => {
    const go = walk({ ...web, nodePort: 30080 })
    t.equal(go('127.0.0.1', '192.0.2.1:30080'), '10.180.0.1:8080 or 10.180.0.2:8080')
    t.end()
  })

  await t.test('IP09: the rules are the same for no Service and for many', (t) => {
    const rules = (text: string) => text.split('# ').find((part) => part.startsWith('iptables'))
    t.equal(rules(rendered(loud, web)), rules(rendered()))
    t.end()
  })
})

void t.test('IP11: packets to a ClusterIP are masqueraded, except those of local pods', (t) => {
  const seen = (detectLocal: DetectLocal, values: Readonly<Record<string, unknown>> = {}) => {
    const state = states('IPv4', { detectLocal })
      .put(service({ endpoints: 1 }))
      .take()
    const go = walkOf('ipvs', state, values)
    return ['pod', 'outside', '10.96.0.10'].map(
      (from) => go(from, '10.96.0.10:80').split(' ')[1] ?? 'kept',
    )
  }
  // Packets of the node itself have the ClusterIP as their source, because it is bound here.
  const usual = ['kept', 'masqueraded', 'masqueraded']
  t.same(seen({ mode: 'ClusterCIDR', cidrs: ['10.180.0.0/16'] }), usual)
  t.same(seen({ mode: 'BridgeInterface', name: 'cni0' }), usual)
  t.same(seen({ mode: 'InterfaceNamePrefix', prefix: 'veth' }), usual)
  t.same(seen({ mode: 'ClusterCIDR', cidrs: [] }), ['kept', 'kept', 'masqueraded'])
  const all = seen({ mode: 'BridgeInterface', name: 'cni0' }, { 'iptables.masqueradeAll': true })
  t.same(all, ['masqueraded', 'masqueraded', 'masqueraded'])
  t.end()
})

void t.test('the first apply reads the kernel and writes only what is missing', async (t) => {
  const node = new FakeNode()
  const state = states()
    .put(web, service({ name: 'np', clusterIp: '10.96.0.11', nodePort: 30080 }))
    .take()
  const plan = planner()(state)
  const applied = await node.applier().apply(plan)
  t.match(applied, { full: true, failed: [] })
  t.strictSame(await node.servers(), [
    '10.96.0.10:80/TCP rr: 10.180.0.1:8080*1 10.180.0.2:8080*1',
    '10.96.0.11:80/TCP rr: 10.180.0.1:8080*1 10.180.0.2:8080*1',
    '192.0.2.1:30080/TCP rr: 10.180.0.1:8080*1 10.180.0.2:8080*1',
  ])
  t.strictSame(node.sets.members('KUBE-IPVS-IPS'), ['10.96.0.10', '10.96.0.11'])
  t.match(
    node.tables.IPv4.text(),
    '-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES',
  )

  node.takeChanges()
  node.sets.restores.length = 0
  const rules = node.tables.IPv4.text()
  await node.applier().apply(planner()(state))
  t.strictSame(node.takeChanges(), [], 'a restart finds everything in place')
  t.strictSame(node.sets.restores, [])
  t.equal(node.tables.IPv4.text(), rules, 'and no jump comes twice')
})

void t.test('a change of one endpoint is one message', async (t) => {
  const node = new FakeNode()
  const cluster = states().put(web, service({ name: 'other', clusterIp: '10.96.0.11' }))
  const plan = planner()
  const applier = node.applier()
  const first = plan(cluster.take())
  await applier.apply(first)
  node.takeChanges()
  const restores = node.sets.restores.length
  const remote = { ip: '10.180.1.3', local: false }
  const second = plan(cluster.put({ ...web, endpoints: [...web.endpoints, remote] }).take())
  t.match(await applier.apply(second), { full: false, objects: 1 })
  t.strictSame(node.takeChanges(), ['add-real'])
  t.strictSame(node.sets.changed, [], 'sets stay the same')
  t.equal(node.sets.restores.length, restores, 'no process for sets')
  t.equal(node.tables.IPv4.restores, 1, 'and none for rules')
  t.equal(
    renderChanges(second, first),
    '# ipvsadm --restore\n-a -t 10.96.0.10:80 -r 10.180.1.3:8080 -m -w 1\n\n',
  )
  t.equal(plan(cluster.take()), second, 'no change gives the same plan')
  const third = plan(cluster.put(web).take())
  await applier.apply(third)
  t.strictSame(node.takeChanges(), ['delete-real'])
  const local = { ip: '10.180.0.3', local: true }
  await applier.apply(plan(cluster.put({ ...web, endpoints: [...web.endpoints, local] }).take()))
  const member = '10.180.0.3,tcp:8080,10.180.0.3'
  t.strictSame(node.sets.changed, [{ do: 'add', set: 'KUBE-LOOP-BACK', member }])
  t.equal(node.sets.restores.length, restores, 'and none where a set changes')
})

void t.test('the server, address and set members of a deleted Service are removed', async (t) => {
  const node = new FakeNode()
  const cluster = states().put(web, service({ name: 'dns', port: 53 }))
  const plan = planner()
  const applier = node.applier()
  const both = plan(cluster.take())
  await applier.apply(both)
  const one = plan(cluster.remove({ namespace: 'default', name: 'dns' }).take())
  await applier.apply(one)
  t.same(await node.servers(), ['10.96.0.10:80/TCP rr: 10.180.0.1:8080*1 10.180.0.2:8080*1'])
  t.strictSame(node.sets.members('KUBE-IPVS-IPS'), ['10.96.0.10'], 'the address has another user')
  const none = plan(cluster.remove({ namespace: 'default', name: 'web' }).take())
  await applier.apply(none)
  t.same(await node.servers(), [])
  t.strictSame(node.sets.members('KUBE-IPVS-IPS'), [])
  t.equal(node.kernel.devices.get('kube-ipvs0')?.size, 0)
})

const foreign = {
  family: 'IPv4',
  protocol: 'TCP',
  ip: '198.51.100.9',
  port: 443,
  scheduler: 'lc',
  schedulerFlags: 0,
  persistenceSeconds: 0,
} as const

void t.test('IP30, IP35: a sync and a cleanup delete only what is ours', async (t) => {
  const node = new FakeNode()
  const { ipvs, links } = node.edge
  const np = service({ name: 'np', clusterIp: '10.96.0.11', nodePort: 30080 })
  await node.applier().apply(planner()(states().put(web, np).take()))
  await ipvs.change([
    { do: 'add-server', server: foreign },
    { do: 'add-server', server: { ...foreign, ip: '192.0.2.1', port: 8443 } },
  ])
  const theirs = ['192.0.2.1:8443/TCP lc:', '198.51.100.9:443/TCP lc:']
  // A new process starts without np. Only the ipset tells that np's node port was ours.
  await node.applier().apply(planner()(states().put(web).take()))
  t.same(await node.servers(), [
    '10.96.0.10:80/TCP rr: 10.180.0.1:8080*1 10.180.0.2:8080*1',
    ...theirs,
  ])
  const deps = { ipvs, links, sets: node.sets.tool, rules: [node.rules], excluded: [], log: silent }
  node.sets.sets.set('theirs', { header: 'hash:ip family inet', members: new Set() })
  await cleanUp(deps)
  t.same(await node.servers(), theirs)
  t.equal(node.kernel.devices.has('kube-ipvs0'), false)
  t.strictSame([...node.sets.sets.keys()], ['theirs'])
  t.notMatch(node.tables.IPv4.text(), 'KUBE-')
  await cleanUp(deps)
  t.pass('a second cleanup finds nothing and is fine')
})

void t.test('IP29: servers in excluded ranges stay', async (t) => {
  const node = new FakeNode()
  await node.applier().apply(planner()(states().put(web).take()))
  const excluded = [parseCidr('10.96.0.0/16')!]
  await node.applier({}, { excluded }).apply(planner()(states().take()))
  t.equal((await node.servers()).length, 1)
  await node.applier().apply(planner()(states().take()))
  t.equal((await node.servers()).length, 1, 'and without its address it is nobody’s we know')
})

void t.test('one restore removes the chains of iptables mode and writes ours', async (t) => {
  const node = new FakeNode()
  const tables = node.tables.IPv4
  const old = [
    '*nat',
    ':PREROUTING ACCEPT [0:0]',
    ':KUBE-SERVICES - [0:0]',
    ':KUBE-SVC-ABCDEFGHIJKLMNOP - [0:0]',
    ':KUBE-NODEPORTS - [0:0]',
    ':KUBE-THEIRS - [0:0]',
    '-A PREROUTING -j KUBE-THEIRS',
    '-A KUBE-SERVICES -d 10.96.0.1 -j KUBE-SVC-ABCDEFGHIJKLMNOP',
    'COMMIT',
    '*filter',
    ':INPUT ACCEPT [0:0]',
    ':KUBE-EXTERNAL-SERVICES - [0:0]',
    '-A INPUT -m conntrack --ctstate NEW -j KUBE-EXTERNAL-SERVICES',
    'COMMIT',
  ]
  await tables.tool.restore(old.join('\n'))
  await node.applier().apply(planner()(states().put(web).take()))
  t.equal(tables.restores, 2)
  t.notMatch(tables.text(), /KUBE-SVC-|KUBE-NODEPORTS|KUBE-EXTERNAL-SERVICES/)
  t.match(tables.text(), '-A PREROUTING -j KUBE-THEIRS')
})

void t.test('cleanup keeps the shared chains that iptables mode wrote', async (t) => {
  const node = new FakeNode()
  const tables = node.tables.IPv4
  await tables.tool.restore(
    '*nat\n:KUBE-SERVICES - [0:0]\n-A KUBE-SERVICES -d 10.96.0.1 -j KUBE-SVC-X\nCOMMIT\n',
  )
  const before = tables.text()
  await cleanUp({
    ...node.edge,
    sets: node.sets.tool,
    rules: [node.rules],
    excluded: [],
    log: silent,
  })
  t.equal(tables.text(), before)
})

void t.test('cleanup without ipset says that something is left where the mode ran', async (t) => {
  const node = new FakeNode()
  const exposed = service({ nodePort: 30080 })
  await node.applier().apply(planner()(states().put(exposed).take()))
  const deps = { ...node.edge, rules: [node.rules], excluded: [], log: silent }
  const missing = new KernelError('not-found', 'run ipset: spawn ipset ENOENT')
  const without = { ...deps, sets: new IpSets(() => Promise.reject(missing)) }
  await t.rejects(cleanUp(without), /ipset ENOENT: .* virtual servers may .* ipset installed/)
  t.notMatch(node.tables.IPv4.text(), 'KUBE-', 'the rest is removed')
  await cleanUp(without)
  t.pass('without the device, nothing says that the mode ran')
  await cleanUp({ ...deps, sets: node.sets.tool })
  t.same([await node.servers(), [...node.sets.sets.keys()]], [[], []], 'with ipset all goes')
})

void t.test(
  'cleanup names the sets that rules of others use, and removes the others',
  async (t) => {
    const node = new FakeNode()
    await node.applier().apply(planner()(states().put(web).take()))
    for (const name of ['KUBE-EXTERNAL-IP', 'KUBE-IPVS-IPS']) node.sets.used.add(name)
    const told: object[] = []
    const log = { ...silent, warn: (fields: object) => void told.push(fields) }
    const deps = { ...node.edge, sets: node.sets.tool, rules: [node.rules], excluded: [], log }
    await cleanUp(deps)
    t.same([...node.sets.sets.keys()], [...node.sets.used])
    t.same(told, [{ set: 'KUBE-EXTERNAL-IP' }, { set: 'KUBE-IPVS-IPS' }])
  },
)

void t.test(
  'cleanup removes the shared chains that the cleanup of iptables mode could not remove',
  async (t) => {
    const node = new FakeNode()
    await node.applier().apply(planner()(states().put(web).take()))
    // That cleanup could not delete KUBE-MARK-MASQ, because chains of this mode still jumped to it.
    const nat = node.tables.IPv4.tables.get('nat')!
    nat.delete('KUBE-SERVICES')
    nat.set('KUBE-MARK-MASQ', [])
    await node.rules.remove('IPv4')
    t.notMatch(node.tables.IPv4.text(), /:KUBE-/)
  },
)

void t.test('a chain to which a foreign rule jumps is emptied and stays', async (t) => {
  const node = new FakeNode()
  const { tables, tool } = node.tables.IPv4
  const [theirs, ours, old] = ['CNI', 'KUBE-NODE-PORT', 'KUBE-SVC-ABCDEFGHIJKLMNOP']
  await tool.restore(
    `*nat\n:${theirs} - [0:0]\n:${old} - [0:0]\n-A ${old} -j ACCEPT\n-A ${theirs} -j ${old}\nCOMMIT`,
  )
  await node.applier().apply(planner()(states().put(web).take()))
  const nat = tables.get('nat')
  t.same(nat?.get(theirs), [`-j ${old}`])
  t.same(nat?.get(old), [], 'a sync succeeds')
  await tool.restore(`*nat\n-A ${theirs} -j ${ours}\nCOMMIT`)
  await node.rules.remove('IPv4')
  t.same(nat?.get(ours), [])
  t.same([...(nat?.keys() ?? [])].filter((name) => name.startsWith('KUBE-')).sort(), [ours, old])
})

void t.test('removed endpoints terminate gracefully', async (t) => {
  const begin = async (protocol: 'TCP' | 'UDP' | 'SCTP', gracePeriodMs = 0, scheduler = 'rr') => {
    const node = new FakeNode()
    const spec = { ...web, protocol, options: { 'ipvs-scheduler': scheduler } }
    const cluster = states().put(spec)
    const plan = planner()
    const applier = node.applier({}, { gracePeriodMs })
    await applier.apply(plan(cluster.take()))
    node.kernel.connect(2, 3)
    const endpointsOf = async (changed: typeof spec, ips: readonly string[]) => {
      node.takeChanges()
      const next = plan(cluster.put({ ...changed, endpoints: ips.map((ip) => ({ ip })) }).take())
      await applier.apply(next)
      return node.takeChanges()
    }
    const endpoints = (...ips: string[]) => endpointsOf(spec, ips)
    const toScheduler = (name: string, ...ips: string[]) =>
      endpointsOf({ ...spec, options: { 'ipvs-scheduler': name } }, ips)
    return { node, applier, endpoints, toScheduler }
  }

  await t.test('IP26: an endpoint with connections has weight 0 until they end', async (t) => {
    const { node, applier, endpoints } = await begin('TCP')
    t.strictSame(await endpoints('10.180.0.1'), ['set-real'])
    const draining = ['10.96.0.10:80/TCP rr: 10.180.0.1:8080*1 10.180.0.2:8080*0']
    t.same(await node.servers(), draining)
    const draining4 = 'ipvs_draining_servers {"ip_family":"IPv4"}'
    t.equal(node.gauges.get(draining4), 1)
    node.now = 1e9
    await applier.sweep()
    t.same(await node.servers(), draining, 'however long it takes')
    node.kernel.connect(2, 0)
    await applier.sweep()
    t.same(await node.servers(), ['10.96.0.10:80/TCP rr: 10.180.0.1:8080*1'])
    t.equal(node.gauges.get(draining4), 0)
  })

  await t.test('dh would refuse clients for a server of weight 0, so none has it', async (t) => {
    const { node, endpoints } = await begin('TCP', 0, 'dh')
    t.strictSame(await endpoints('10.180.0.1'), ['delete-real'])
    t.same(await node.servers(), ['10.96.0.10:80/TCP dh: 10.180.0.1:8080*1'])
  })

  await t.test('nor has it what drains when its scheduler becomes dh', async (t) => {
    const { node, applier, endpoints, toScheduler } = await begin('TCP')
    const lookForDraining = async () => {
      await endpoints('10.180.0.1')
      t.match(await node.servers(), ['10.96.0.10:80/TCP rr: 10.180.0.1:8080*1 10.180.0.2:8080*0'])
    }
    await lookForDraining()
    t.strictSame(await toScheduler('dh', '10.180.0.1'), ['set-server', 'delete-real'])
    t.same(await node.servers(), ['10.96.0.10:80/TCP dh: 10.180.0.1:8080*1'])
    await toScheduler('rr', '10.180.0.1', '10.180.0.2')
    node.kernel.connect(2, 3)
    await lookForDraining()
    applier.forget()
    await toScheduler('dh', '10.180.0.1')
    t.same(await node.servers(), ['10.96.0.10:80/TCP dh: 10.180.0.1:8080*1'], 'in a full sync')
  })

  await t.test('an endpoint without connections is deleted at once', async (t) => {
    const { endpoints } = await begin('TCP')
    t.strictSame(await endpoints('10.180.0.2'), ['delete-real'])
  })

  await t.test('connections are cut after the grace period', async (t) => {
    const { node, applier, endpoints } = await begin('TCP', 60_000)
    await endpoints('10.180.0.1')
    node.now = 59_000
    await applier.sweep()
    t.match((await node.servers())[0], '10.180.0.2:8080*0')
    node.now = 60_000
    await applier.sweep()
    t.notMatch((await node.servers())[0], '10.180.0.2')
  })

  await t.test('also if somebody gives the endpoint a weight again and again', async (t) => {
    const { node, applier, endpoints } = await begin('TCP', 60_000)
    await endpoints('10.180.0.1')
    const [server] = await node.edge.ipvs.listServers('IPv4')
    if (!server) throw new Error('no virtual server')
    const real = { ip: '10.180.0.2', port: 8080, weight: 1 }
    for (const now of [20_000, 40_000, 60_000]) {
      node.now = now
      await node.edge.ipvs.change([{ do: 'set-real', server, real }])
      await applier.sweep()
      t.match((await node.servers())[0], '10.180.0.2:8080*1')
      applier.forget()
      await endpoints('10.180.0.1')
      t.match((await node.servers())[0], '10.180.0.2:8080*0')
    }
    await applier.sweep()
    t.notMatch((await node.servers())[0], '10.180.0.2')
  })

  await t.test('IP28: an endpoint that returns gets its weight back and stays', async (t) => {
    const { node, applier, endpoints } = await begin('TCP', 60_000)
    await endpoints('10.180.0.1')
    t.strictSame(await endpoints('10.180.0.1', '10.180.0.2'), ['set-real'])
    node.now = 1e9
    await applier.sweep()
    t.match((await node.servers())[0], '10.180.0.2:8080*1')
  })

  await t.test('IP27: UDP and SCTP endpoints are deleted at once', async (t) => {
    for (const protocol of ['UDP', 'SCTP'] as const) {
      const { endpoints } = await begin(protocol)
      t.strictSame(await endpoints('10.180.0.1'), ['delete-real'])
    }
  })

  await t.test('an endpoint that drains is recognised after a restart', async (t) => {
    const { node, endpoints } = await begin('TCP')
    await endpoints('10.180.0.1')
    const applier = node.applier()
    const plan = planner()(
      states()
        .put({ ...web, endpoints: [{ ip: '10.180.0.1' }] })
        .take(),
    )
    node.takeChanges()
    await applier.apply(plan)
    t.strictSame(node.takeChanges(), [])
    await applier.verify()
    t.strictSame(node.resyncs, [], 'draining is nothing foreign')
    node.kernel.connect(2, 0)
    await applier.sweep()
    t.notMatch((await node.servers())[0], '10.180.0.2')
  })
})

void t.test('IP26: only what has weight 0 in the kernel is draining', async (t) => {
  const two = service({ endpoints: ['10.180.0.1', '10.180.0.2'] })
  const one = service({ endpoints: ['10.180.0.1'] })
  const begin = async () => {
    const node = new FakeNode()
    const { ipvs } = node.edge
    const edge = { fails: false }
    const applier = node.applier({
      ipvs: {
        change: (changes) =>
          edge.fails && changes.some((change) => change.do === 'set-real')
            ? Promise.reject(new Error('answers were lost'))
            : ipvs.change(changes),
        listRealServers: (server) => ipvs.listRealServers(server),
      },
    })
    const [plans, cluster] = [planner(), states().put(two)]
    await applier.apply(plans(cluster.take()))
    node.kernel.connect(2, 1)
    const fewer = plans(cluster.put(one).take())
    return { node, applier, edge, fewer }
  }

  await t.test('a weight that could not be written is written by the next sync', async (t) => {
    const { node, applier, edge, fewer } = await begin()
    edge.fails = true
    await t.rejects(applier.apply(fewer), /answers were lost/)
    edge.fails = false
    await applier.verify()
    t.strictSame(node.resyncs, [], 'which compares everything anyway')
    await applier.apply(fewer)
    t.match((await node.servers())[0], '10.180.0.2:8080*0')
  })

  await t.test('an endpoint that somebody gave a weight is not deleted as drained', async (t) => {
    const { node, applier, fewer } = await begin()
    await applier.apply(fewer)
    const [server] = await node.edge.ipvs.listServers('IPv4')
    if (!server) throw new Error('no virtual server')
    const real = { ip: '10.180.0.2', port: 8080, weight: 1 }
    await node.edge.ipvs.change([{ do: 'set-real', server, real }])
    node.kernel.connect(2, 0)
    await applier.sweep()
    t.match((await node.servers())[0], '10.180.0.2:8080*1')
    await applier.verify()
    t.match(node.resyncs, [/^1 difference from .* the first: server 10\.96\.0\.10 80 TCP$/])
  })
})

void t.test(
  'IP27: a sync waits for one draining virtual server, not for all of them',
  async (t) => {
    const node = new FakeNode()
    const { ipvs } = node.edge
    const names = ['a', 'b', 'c', 'd']
    const spec = (name: string, endpoints: readonly string[]) =>
      service({ name, clusterIp: `10.96.0.${names.indexOf(name) + 1}`, endpoints })
    const cluster = states().put(...names.map((name) => spec(name, ['10.180.0.1', '10.180.0.2'])))
    const order: string[] = []
    let isSwept = false
    const applier = node.applier({
      ipvs: {
        change: (changes) => ipvs.change(changes),
        listRealServers: (server) => {
          if (isSwept) order.push(server.ip)
          return ipvs.listRealServers(server)
        },
      },
    })
    const plans = planner()
    await applier.apply(plans(cluster.take()))
    node.kernel.connect(2, 1)
    const fewer = cluster.put(...names.map((name) => spec(name, ['10.180.0.1'])))
    await applier.apply(plans(fewer.take()))
    isSwept = true
    const next = plans(fewer.put(service({ name: 'new', clusterIp: '10.96.0.9' })).take())
    const swept = applier.sweep()
    const applied = applier.apply(next).then(() => order.push('sync'))
    await Promise.all([swept, applied])
    t.strictSame([order.length, order.indexOf('sync')], [5, 1])
  },
)

void t.test('a Service whose scheduler is missing gets the scheduler of the node', async (t) => {
  const node = new FakeNode()
  const chosen = { ...web, options: { 'ipvs-scheduler': 'sed' } }
  const applier = node.applier()
  const plan = planner()(states().put(chosen).take())
  t.strictSame((await applier.apply(plan)).failed, [])
  t.same(await node.servers(), ['10.96.0.10:80/TCP rr: 10.180.0.1:8080*1 10.180.0.2:8080*1'])
  t.match(node.warnings, [{ scheduler: 'sed', instead: 'rr' }])
  await applier.verify()
  t.strictSame(node.resyncs, [], 'which is not a foreign change')
  node.kernel.schedulers.add('sed')
  applier.forget()
  await applier.apply(plan)
  t.match((await node.servers())[0], /TCP sed:/, 'once the module is there it is used')
})

void t.test('a Service is served if the configuration names a missing scheduler', async (t) => {
  const node = new FakeNode()
  const applier = node.applier()
  const plan = ipvsPlanner({ ...testSettings, scheduler: 'nonsense' })(states().put(web).take())
  t.strictSame((await applier.apply(plan)).failed, [])
  t.same(await node.servers(), ['10.96.0.10:80/TCP rr: 10.180.0.1:8080*1 10.180.0.2:8080*1'])
  t.match(node.warnings, [{ scheduler: 'nonsense', instead: 'rr' }])
  await applier.verify()
  t.strictSame(node.resyncs, [], 'which is not a foreign change')
})

void t.test('a missing scheduler of one family is not forgotten with the other', async (t) => {
  const node = new FakeNode()
  const applier = node.applier()
  const plans = planner()
  const chosen = { ...web, options: { 'ipvs-scheduler': 'sed' } }
  await applier.apply(plans(states().put(chosen).take()))
  await applier.apply(plans(states('IPv6').take()))
  await applier.verify()
  t.strictSame(node.resyncs, [], 'nothing foreign changed')
})

void t.test('IP32: a refused change is reported for its Service and tried again', async (t) => {
  const node = new FakeNode()
  node.kernel.schedulers.delete('rr')
  const applier = node.applier()
  const plan = planner()(states().put(web).take())
  const refused = { key: 'default/web:http/TCP', reason: /scheduler rr \(modprobe ip_vs_rr\)/ }
  t.match((await applier.apply(plan)).failed, [refused])
  node.kernel.schedulers.add('rr')
  t.match(await applier.apply(plan), { full: false, failed: [refused] }, 'not at once')
  node.now += 1000
  t.match(await applier.apply(plan), { full: true, failed: [] })
  t.equal((await node.servers()).length, 1)
})

void t.test(
  'IP32: a Service that the kernel refuses does not make every sync a full one',
  async (t) => {
    const node = new FakeNode()
    const { links } = node.edge
    const bad = '198.51.100.9'
    const refusal = { ip: bad, error: new KernelError('invalid', 'add address: not possible') }
    const applier = node.applier({
      links: {
        find: (name) => links.find(name),
        ensureDummy: (name) => links.ensureDummy(name),
        addresses: (family, options) => links.addresses(family, options),
        deleteAddresses: (family, device, ips) => links.deleteAddresses(family, device, ips),
        addAddresses: async (family, device, ips) => {
          const fit = ips.filter((ip) => ip !== bad)
          const failures = await links.addAddresses(family, device, fit)
          return fit.length < ips.length ? [...failures, refusal] : failures
        },
      },
    })
    const plans = planner()
    const refused = service({ name: 'refused', clusterIp: '10.96.0.20', externalIps: [bad] })
    const cluster = states().put(web, refused)
    const failed = [{ key: 'default/refused:http/TCP', reason: 'add address: not possible' }]
    t.match(await applier.apply(plans(cluster.take())), { full: true, failed })
    const changed = service({ endpoints: ['10.180.0.3'] })
    const next = await applier.apply(plans(cluster.put(changed).take()))
    t.match(next, { full: false, failed })
    t.match((await node.servers())[0], /: 10.180.0.3:8080\*1$/, 'which others do not notice')
    await applier.verify()
    t.strictSame(node.resyncs, [], 'and what is refused is nothing foreign')
    const gone = await applier.apply(plans(cluster.remove(refused).take()))
    t.match(gone, { full: false, failed: [] })
  },
)

void t.test('IP33: foreign changes are found and repaired', async (t) => {
  const node = new FakeNode()
  const applier = node.applier()
  const plan = planner()(states().put(web).take())
  await applier.apply(plan)
  await applier.verify()
  t.strictSame(node.resyncs, [])
  const jumpsFrom = (chain: string) => node.tables.IPv4.tables.get('nat')!.get(chain)!
  const disturbances: (() => unknown)[] = [
    () => node.kernel.servers.clear(),
    () => node.kernel.devices.get('kube-ipvs0')!.clear(),
    () => node.sets.sets.get('KUBE-CLUSTER-IP')!.members.clear(),
    () => node.tables.IPv4.tables.get('nat')!.set('KUBE-SERVICES', []),
    () =>
      node.tables.IPv4.tables.get('filter')!.get('KUBE-IPVS-FILTER')!.splice(-1, 1, '-j RETURN'),
    () => node.tables.IPv4.tables.get('nat')!.set('PREROUTING', []),
    () => jumpsFrom('OUTPUT').push(...jumpsFrom('OUTPUT')),
    () => node.kernel.devices.delete('kube-ipvs0'),
  ]
  for (const disturb of disturbances) {
    disturb()
    await applier.verify()
    t.match(node.resyncs.shift(), /differences? from what was written to IPv4/)
    await applier.apply(plan)
    await applier.verify()
    t.strictSame(node.resyncs, [], 'repaired')
    t.equal(jumpsFrom('OUTPUT').length, 1)
  }
})

void t.test('IP33: a rule that iptables writes in other words asks for one repair', async (t) => {
  const node = new FakeNode()
  const applier = node.applier()
  const plan = planner()(states().put(web).take())
  const inOtherWords = async () => {
    await applier.apply(plan)
    const chain = node.tables.IPv4.tables.get('filter')!.get('KUBE-IPVS-FILTER')!
    chain.splice(-1, 1, '-j REJECT --in-other-words')
  }
  await inOtherWords()
  await applier.verify()
  t.match(node.resyncs.splice(0), [/the first: chain filter KUBE-IPVS-FILTER/])
  await inOtherWords()
  for (let times = 0; times < 3; times++) await applier.verify()
  t.strictSame(node.resyncs, [], 'another write would not help')
  node.tables.IPv4.tables.get('filter')!.get('KUBE-IPVS-FILTER')!.splice(-1, 1, '-j RETURN')
  await applier.verify()
  t.match(node.resyncs, [/the first: chain filter KUBE-IPVS-FILTER/], 'but another change is one')
})

void t.test('IP33: the address that the kernel gives a device that is up stays', async (t) => {
  const node = new FakeNode()
  const applier = node.applier()
  const six = service({ clusterIp: 'fd00:96::a', endpoints: ['fd00:180::1'] })
  await applier.apply(planner()(states('IPv6').put(six).take()))
  node.kernel.devices.get('kube-ipvs0')!.add('fe80'.padEnd(31, '0') + '1')
  await applier.verify()
  t.strictSame(node.resyncs, [])
})

void t.test('IP33: a comparison that fails again and again is a warning once', async (t) => {
  const node = new FakeNode()
  const { tool } = node.sets
  let fails = false
  const list = () => (fails ? Promise.reject(new Error('no memory')) : tool.list())
  const applier = node.applier({ sets: { restore: (batch) => tool.restore(batch), list } })
  await applier.apply(planner()(states().put(web).take()))
  for (const warnings of [1, 2]) {
    fails = true
    for (let times = 0; times < 3; times++) await applier.verify()
    t.equal(node.warnings.length, warnings)
    fails = false
    await applier.verify()
  }
})

void t.test('IP33: foreign changes are found while syncs go on', async (t) => {
  const node = new FakeNode()
  const { ipvs } = node.edge
  let during = () => Promise.resolve()
  const applier = node.applier({
    tables: {
      listServers: async (family) => {
        const work = during
        during = () => Promise.resolve()
        await work()
        return ipvs.listServers(family)
      },
      listRealServers: (server) => ipvs.listRealServers(server),
    },
  })
  const plans = planner()
  const other = service({ name: 'other', clusterIp: '10.96.0.20' })
  const cluster = states().put(web, other)
  await applier.apply(plans(cluster.take()))
  for (const endpoints of [3, 1]) {
    const next = plans(
      cluster.put(service({ name: 'other', clusterIp: '10.96.0.20', endpoints })).take(),
    )
    during = () => applier.apply(next).then(() => undefined)
    await applier.verify()
    t.strictSame(node.resyncs, [], 'what a sync changes is nothing foreign')
  }
  const next = plans(cluster.remove(other).take())
  during = async () => {
    await applier.apply(next)
    node.kernel.servers.clear()
  }
  await applier.verify()
  t.match(node.resyncs, [/differences? from what was written to IPv4/])
})

void t.test(
  'IP33: what the kernel leaves out of a list while others go is nothing foreign',
  async (t) => {
    const node = new FakeNode()
    const { ipvs } = node.edge
    let leavesOut = () => Promise.resolve(false)
    const applier = node.applier({
      tables: {
        listServers: async (family) => {
          const from = (await leavesOut()) ? 1 : 0
          return (await ipvs.listServers(family)).slice(from)
        },
        listRealServers: (server) => ipvs.listRealServers(server),
      },
    })
    const plans = planner()
    const other = service({ name: 'other', clusterIp: '10.96.0.20' })
    const cluster = states().put(web, other)
    await applier.apply(plans(cluster.take()))
    const next = plans(cluster.remove(other).take())
    leavesOut = async () => {
      leavesOut = () => Promise.resolve(false)
      await applier.apply(next)
      return true
    }
    await applier.verify()
    t.strictSame(node.resyncs, [])
    leavesOut = () => Promise.resolve(true)
    await applier.verify()
    t.match(node.resyncs, [/from what was written to IPv4/], 'without syncs it is missing')
  },
)

void t.test(
  'IP33: a member that comes and goes during a comparison is nothing foreign',
  async (t) => {
    const node = new FakeNode()
    const { tool } = node.sets
    const plans = planner()
    const at = (ip: string) => plans(cluster.put(service({ endpoints: [ip] })).take())
    const cluster = states()
    let isCompared = false
    const applier = node.applier({
      sets: {
        restore: (batch) => tool.restore(batch),
        list: async () => {
          if (isCompared) await applier.apply(at('10.180.0.2'))
          const listed = await tool.list()
          if (isCompared) await applier.apply(at('10.180.0.1'))
          return listed
        },
      },
    })
    await applier.apply(at('10.180.0.1'))
    isCompared = true
    await applier.verify()
    t.strictSame(node.resyncs, [])
  },
)

void t.test(
  'IP33: the comparison shares the event loop with syncs and health checks',
  async (t) => {
    const node = new FakeNode()
    const applier = node.applier()
    const many = Array.from({ length: 2000 }, (_, index) =>
      service({ name: `s${index}`, clusterIp: `10.97.${index >> 8}.${index & 255}`, endpoints: 3 }),
    )
    await applier.apply(
      planner()(
        states()
          .put(...many)
          .take(),
      ),
    )
    let turns = 0
    const ticking = setInterval(() => turns++, 0)
    await applier.verify()
    clearInterval(ticking)
    t.ok(turns >= 10, `timers ran ${turns} times meanwhile`)
    t.strictSame(node.resyncs, [])
  },
)

void t.test(
  'IP30: virtual servers of a removed Service go after a sync that failed half-way',
  async (t) => {
    const gone = service({ name: 'gone', nodePort: 30_080, externalIps: ['192.0.2.1'] })
    for (const isRestarted of [true, false]) {
      const node = new FakeNode()
      let fails = false
      const { links } = node.edge
      const addAddresses = links.addAddresses.bind(links)
      Object.assign(links, {
        addAddresses: (...wanted: Parameters<typeof addAddresses>) =>
          fails ? Promise.reject(new KernelError('busy', 'no buffer')) : addAddresses(...wanted),
      })
      const cluster = states().put(gone)
      const plan = planner()
      const first = node.applier()
      await first.apply(plan(cluster.take()))
      t.ok((await node.servers()).length >= 3)
      const applier = isRestarted ? node.applier() : first
      fails = true
      const last = plan(cluster.remove(gone).take())
      await t.rejects(applier.apply(last), /no buffer/)
      fails = false
      applier.forget()
      await applier.apply(last)
      t.strictSame(await node.servers(), [])
      for (const name of node.sets.sets.keys()) t.strictSame(node.sets.members(name), [], name)
    }
  },
)

for (const options of [
  'maxelem 65536',
  'maxelem 4294967295 timeout 60',
  'maxelem 4294967295 netmask 24',
]) {
  void t.test(`IP20: a set with ${options} is replaced`, async (t) => {
    const node = new FakeNode()
    node.sets.sets.set('KUBE-CLUSTER-IP', {
      header: `hash:ip,port family inet hashsize 1024 ${options} bucketsize 12`,
      members: new Set(['10.96.0.99,tcp:1', '10.96.0.10,tcp:80']),
    })
    await node.applier().apply(planner()(states().put(web).take()))
    const { header } = node.sets.sets.get('KUBE-CLUSTER-IP')!
    t.equal(header, 'hash:ip,port family inet maxelem 4294967295')
    t.strictSame(node.sets.members('KUBE-CLUSTER-IP'), ['10.96.0.10,tcp:80'])
    t.notOk(node.sets.sets.has('KUBE-TMP'))
  })
}

void t.test('a set of another type or family is made anew', async (t) => {
  for (const header of ['hash:ip family inet', 'hash:ip,port family inet6']) {
    const node = new FakeNode()
    const maxelem = 'maxelem 65536'
    node.sets.sets.set('KUBE-CLUSTER-IP', { header: `${header} ${maxelem}`, members: new Set() })
    await node.applier().apply(planner()(states().put(web).take()))
    const made = node.sets.sets.get('KUBE-CLUSTER-IP')!
    t.equal(made.header, 'hash:ip,port family inet maxelem 4294967295')
    t.strictSame(node.sets.members('KUBE-CLUSTER-IP'), ['10.96.0.10,tcp:80'])
  }
})

void t.test(
  'an address and port that two Services claim belongs to the first, and after its end to the second',
  async (t) => {
    const node = new FakeNode()
    const a = service({
      name: 'a',
      clusterIp: '10.96.0.1',
      externalIps: ['203.0.113.1'],
      endpoints: ['10.180.0.1'],
    })
    const b = service({
      name: 'b',
      clusterIp: '10.96.0.2',
      externalIps: ['203.0.113.1'],
      endpoints: ['10.180.0.2'],
    })
    const cluster = states().put(b, a)
    const plan = planner()
    const applier = node.applier()
    const both = plan(cluster.take())
    await applier.apply(both)
    const shared = async () => (await node.servers()).find((text) => text.startsWith('203'))
    t.equal(await shared(), '203.0.113.1:80/TCP rr: 10.180.0.1:8080*1')
    await applier.apply(plan(cluster.remove({ namespace: 'default', name: 'a' }).take()))
    t.equal(await shared(), '203.0.113.1:80/TCP rr: 10.180.0.2:8080*1')
  },
)

void t.test('IP06-IP08: sysctls depend on the kernel, time-outs on the configuration', (t) => {
  const names = (version: string, strictArp = false) =>
    sysctlWishes(version, { strictArp }).map(({ name, value }) => `${name}=${value}`)
  t.ok(names('5.4.0-100-generic').includes('net/ipv4/vs/conn_reuse_mode=0'))
  t.notOk(names('5.10.0').join().includes('conn_reuse_mode'))
  t.notOk(names('6.1.176').join().includes('arp'))
  t.match(names('6.1.176', true).join(), 'arp_ignore=1,net/ipv4/conf/all/arp_announce=2')
  t.equal(timeoutsOf(testSettings), undefined)
  t.strictSame(timeoutsOf({ ...testSettings, udpTimeoutMs: 1500 }), {
    tcp: 0,
    tcpFin: 0,
    udp: 2,
  })
  t.end()
})

void t.test('which iptables the node uses is found once for each family', async (t) => {
  const opened: string[] = []
  const tool = new FakeTables().tool
  const rules = new Rules((family) => {
    opened.push(family)
    return opened.length === 1 ? Promise.reject(new Error('not now')) : Promise.resolve(tool)
  })
  await t.rejects(rules.read('IPv4'), { message: /not now/ }, 'a failure is not kept')
  for (const family of ['IPv4', 'IPv4', 'IPv6', 'IPv6'] as const) await rules.read(family)
  t.same(opened, ['IPv4', 'IPv4', 'IPv6'])
})
