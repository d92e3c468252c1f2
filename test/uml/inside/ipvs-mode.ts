/** ipvs mode on a real kernel: probe, tables, draining, restarts. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import t, { type Test } from 'tap'
import { configWith } from '../../../lib/config/load.js'
import { IpSets, IpSetBatch } from '../../../lib/kernel/ipset.js'
import { Ipvs } from '../../../lib/kernel/ipvs.js'
import { openChannel } from '../../../lib/kernel/netlink/channel.js'
import { protocols } from '../../../lib/kernel/netlink/protocol.js'
import { mode } from '../../../lib/modes/ipvs/index.js'
import { probeDefaults, probeIpvs } from '../../../lib/modes/ipvs/probe.js'
import { ipvsBehaviour } from '../../support/ipvs-behaviour.js'
import { service, states } from '../../support/states.js'
import {
  ask,
  connect,
  context,
  create,
  hasScheduler,
  nothing,
  resyncs,
  sh,
  table,
  warnings,
  web,
} from './node.js'
import { until } from '../../support/until.js'

const six = service({ name: 'six', clusterIp: 'fd00:96::a', endpoints: ['fd00:180::1'] })

await t.test(
  'IP04, IP31: the probe loads modules, tries IPVS and removes what it made',
  async (t) => {
    for (const finding of await probeIpvs(context.log))
      t.equal(finding.ok, true, `${finding.what}: ${finding.seen}`)
    t.strictSame(table(), [])
    t.throws(() => sh('ip link show kube-ipvs0'))
    const missing = await probeIpvs(context.log, probeDefaults, 'twos')
    t.match(
      missing.filter(({ ok }) => !ok),
      hasScheduler('twos') ? [] : [{ what: 'scheduler twos', fix: /modprobe ip_vs_twos/ }],
    )
  },
)

/** Another mode that ran in this kernel may have left KUBE-FIREWALL, which kubelet shares. */
const kubeRules = () => sh('iptables-save | grep KUBE-; ip6tables-save | grep KUBE-; true')

await t.test('the kernel behaves as the fake does', (t) => ipvsBehaviour(t, {}))

await t.test('an address that the kernel refuses is left out alone, again and again', async (t) => {
  const running = await create()
  const cast = service({ name: 'cast', clusterIp: 'fd00:96::b', externalIps: ['ff0e::1'] })
  const cluster = states('IPv6').put(six, cast)
  const failed = [{ key: 'default/cast:http/TCP' }]
  t.match(await running.apply(running.plan(cluster.take())), { full: true, failed })
  const next = cluster.put(service({ name: 'new', clusterIp: 'fd00:96::c' })).take()
  t.match(await running.apply(running.plan(next)), { full: false, failed })
  t.match(sh('ip address show dev kube-ipvs0'), /fd00:96::c\/128/)
  await running.close()
  await mode.cleanup(context)
})

await t.test(
  'a state is written as servers, sets, rules and addresses, and cleanup removes all',
  async (t) => {
    const before = kubeRules()
    const running = await create()
    const plan = running.plan(states().put(web).take())
    t.match(await running.apply(plan), { full: true, failed: [] })
    const planSix = running.plan(states('IPv6').put(six).take())
    t.match(await running.apply(planSix), { full: true, failed: [] })
    t.match(table().join('\n'), '-a -t 192.0.2.1:30080 -r 10.180.0.2:8080 -m -w 1')
    t.match(table().join('\n'), '-a -t [fd00:96::a]:80 -r [fd00:180::1]:8080 -m -w 1')
    t.match(sh('ip address show dev kube-ipvs0'), /203\.0\.113\.2\/32[^]*fd00:96::a\/128/)
    t.match(sh('ipset list KUBE-LOAD-BALANCER-SOURCE-CIDR'), '203.0.113.2,tcp:80,198.51.100.0/24')
    t.match(sh('iptables-save'), /-A KUBE-IPVS-FILTER .*KUBE-IPVS-IPS dst -j REJECT/)
    for (const name of ['conntrack', 'expire_nodest_conn', 'expire_quiescent_template']) {
      t.equal(sh(`cat /proc/sys/net/ipv4/vs/${name}`), '1\n')
    }
    await running.close()

    const again = await create()
    const objects = await again.apply(again.plan(states().put(web).take()))
    t.match(objects, { full: true, failed: [] }, 'a restart applies the same without complaint')
    await again.close()
    t.strictSame(resyncs, [])

    sh('ipvsadm -A -t 198.51.100.9:443 -s rr; ipset create theirs hash:ip')
    await mode.cleanup(context)
    t.strictSame(table(), ['-A -t 198.51.100.9:443 -s rr'], 'IP35: of others nothing goes')
    t.equal(sh('ipset list -n'), 'theirs\n')
    t.equal(kubeRules(), before)
    t.throws(() => sh('ip link show kube-ipvs0'))
    sh('ipvsadm -C; ipset destroy')
  },
)

await t.test('what another program set at virtual and real servers is taken back', async (t) => {
  const running = await create()
  t.teardown(() => running.close())
  // ipvsadm routes only where both ports are the same, and the kernel not to itself.
  const where = { clusterIp: '10.96.0.53', port: 8080, endpoints: ['10.180.0.9'] }
  const dns = service({ name: 'dns', protocol: 'UDP', ...where })
  const planned = running.plan(states().put(web, dns).take())
  await running.apply(planned)
  const before = table()
  const ipvs = Ipvs.open(openChannel(protocols.generic))
  t.teardown(() => ipvs.close())
  const altered = async () => {
    const servers = await ipvs.listServers('IPv4')
    const reals = await Promise.all(servers.map((server) => ipvs.listRealServers(server)))
    return [...servers, ...reals.flat()].flatMap((each) => each.altered ?? [])
  }
  t.strictSame(await altered(), [])
  sh(`
    set -e
    ipvsadm -e -u 10.96.0.53:8080 -r 10.180.0.9:8080 -g -w 1
    ipvsadm -e -t 10.96.0.10:80 -r 10.180.0.2:8080 -m -w 1 -x 20 -y 5
    ipvsadm -E -u 10.96.0.53:8080 -s rr -o
    ipvsadm -E -t 192.0.2.1:30080 -s rr -p 60 -M 255.255.255.0`)
  t.same((await altered()).sort(), ['-M 255.255.255.0', '-g', '-m -x 20 -y 5', '-o'])
  running.forget()
  t.match(await running.apply(planned), { failed: [] })
  t.strictSame(await altered(), [])
  t.strictSame(table(), before)
  await mode.cleanup(context)
})

/** Both families are written. `again` writes them without trusting what is there. */
async function applied(t: Test) {
  const running = await create()
  t.teardown(() => running.close())
  const cluster = [states().put(web).take(), states('IPv6').put(six).take()]
  const plans = cluster.map((state) => running.plan(state))
  const write = async () => {
    for (const plan of plans) t.match(await running.apply(plan), { failed: [] })
  }
  await write()
  const again = () => {
    running.forget()
    return write()
  }
  return { cluster, again }
}

await t.test('what only another program puts into sets is taken out', async (t) => {
  const { cluster, again } = await applied(t)
  const members = () => sh('ipset save | grep ^add | sort')
  const before = members()
  const range = 'KUBE-LOAD-BALANCER-SOURCE-CIDR 203.0.113.2,tcp:80'
  sh(`
    set -e
    ipset add -exist ${range},198.51.100.0/24 nomatch
    ipset add ${range},198.51.100.7 nomatch
    ipset add KUBE-CLUSTER-IP 10.96.0.10,icmp:echo-request
    ipset add KUBE-CLUSTER-IP 10.96.0.10,udplite:53
    ipset add KUBE-CLUSTER-IP 10.96.0.10,gre:0
    ipset add KUBE-6-CLUSTER-IP fd00:96::a,icmpv6:echo-request`)
  const config = configWith({})
  const told = await Promise.all(cluster.map((state) => mode.differences(state, config)))
  t.same(
    told.map((each) => each.map(({ expected, found }) => expected ?? found).sort()),
    [
      [
        '10.96.0.10,gre:0',
        '10.96.0.10,icmp:echo-request',
        '10.96.0.10,udplite:53',
        '203.0.113.2,tcp:80,198.51.100.0/24',
        '203.0.113.2,tcp:80,198.51.100.0/24 nomatch',
        '203.0.113.2,tcp:80,198.51.100.7 nomatch',
      ],
      ['fd00:96::a,ipv6-icmp:echo-request'],
    ],
  )
  await again()
  t.equal(members(), before)
  await mode.cleanup(context)
})

await t.test('addresses that somebody added with a prefix are taken away', async (t) => {
  const { cluster, again } = await applied(t)
  const addresses = () => sh('ip -br address show dev kube-ipvs0')
  const before = addresses()
  sh(`
    ip address add 10.97.0.1/24 dev kube-ipvs0
    ip address add fd00:97::1/64 dev kube-ipvs0`)
  const told = cluster.map((state) => mode.differences(state, configWith({})))
  t.match(await Promise.all(told), [[{ found: '10.97.0.1/24' }], [{ found: 'fd00:97::1/64' }]])
  await again()
  t.equal(addresses(), before)
  await mode.cleanup(context)
})

await t.test('IP26, IP28: a real connection drains across a restart', async (t) => {
  let running = await create()
  const cluster = states().put(web)
  let last = running.plan(cluster.take())
  await running.apply(last)
  const socket = await connect()
  const served = await ask(socket)
  const other = served === '10.180.0.1' ? '10.180.0.2' : '10.180.0.1'
  const real = () => table().find((line) => line.includes(`10.96.0.10:80 -r ${served}:`))

  const only = { ...web, endpoints: [{ ip: other }] }
  const next = running.plan(cluster.put(only).take())
  await running.apply(next)
  t.match(real(), '-w 0')
  t.equal(await ask(socket), served, 'the connection lives')
  const fresh = await connect()
  t.equal(await ask(fresh), other, 'new ones go elsewhere')
  fresh.destroy()

  last = running.plan(cluster.put(web).take())
  await running.apply(last)
  t.match(real(), '-w 1')
  t.equal(await ask(socket), served, 'and lives on when the endpoint returns')

  await running.apply(running.plan(cluster.put(only).take()))
  await running.close()
  running = await create({ 'ipvs.gracefulPeriod': 1 })
  await running.apply(running.plan(cluster.take()))
  t.match(real(), '-w 0', 'a restart leaves it draining')
  t.equal(await ask(socket), served)
  const stop = new AbortController()
  const done = running.run(stop.signal)
  const keepAlive = setInterval(nothing, 100)
  await until('its removal after the grace period', () => real() === undefined)
  stop.abort()
  await done
  clearInterval(keepAlive)
  socket.destroy()
  await running.close()
  await mode.cleanup(context)
})

await t.test('connections survive kill -9 and a new process', async (t) => {
  const program = `
    const { mode } = await import(${JSON.stringify(new URL('../../../lib/modes/ipvs/index.js', import.meta.url).href)})
    const { service, states, testConfig } = await import(${JSON.stringify(new URL('../../support/states.js', import.meta.url).href)})
    const nothing = () => undefined
    const log = { debug: nothing, info: nothing, warn: nothing, error: nothing }
    const meter = { count: nothing, gauge: nothing, observe: nothing, forget: nothing }
    const running = await mode.create(testConfig, ['IPv4', 'IPv6'], { log, meter, resync: nothing })
    const spec = service({ endpoints: ['10.180.0.1', '10.180.0.2'] })
    await running.apply(running.plan(states().put(spec).take()))
    console.log('applied')
    setInterval(nothing, 1000)`
  const start = async () => {
    const child = spawn(process.execPath, ['--input-type=module', '-e', program], {
      stdio: ['ignore', 'pipe', 'inherit'],
    })
    await once(child.stdout, 'data')
    return child
  }
  const first = await start()
  const socket = await connect()
  const served = await ask(socket)
  first.kill('SIGKILL')
  await once(first, 'exit')
  t.equal(await ask(socket), served, 'while there is no process')
  const second = await start()
  t.equal(await ask(socket), served, 'and under the next')
  second.kill('SIGKILL')
  socket.destroy()
  await mode.cleanup(context)
})

await t.test('a Service with a missing scheduler gets that of the node', async (t) => {
  const running = await create({ 'ipvs.scheduler': 'wlc' })
  const specs = ['sed', 'sh', 'mh', 'twos'].map((scheduler, index) =>
    service({
      name: scheduler,
      clusterIp: `10.96.1.${index}`,
      options: { 'ipvs-scheduler': scheduler },
      endpoints: [{ ip: '10.180.0.1', weight: 3 }],
    }),
  )
  t.strictSame(
    (
      await running.apply(
        running.plan(
          states()
            .put(...specs)
            .take(),
        ),
      )
    ).failed,
    [],
  )
  t.strictSame(
    table().filter((line) => line.startsWith('-A')),
    [
      '-A -t 10.96.1.0:80 -s sed',
      '-A -t 10.96.1.1:80 -s sh -b sh-fallback',
      '-A -t 10.96.1.2:80 -s mh -b mh-fallback,mh-port',
      `-A -t 10.96.1.3:80 -s ${hasScheduler('twos') ? 'twos' : 'wlc'}`,
    ],
  )
  t.match(
    table().filter((line) => line.endsWith('-w 3')),
    { length: 4 },
  )
  t.match(warnings, hasScheduler('twos') ? [] : [{ scheduler: 'twos', instead: 'wlc' }])
  await running.close()
  await mode.cleanup(context)
})

await t.test('IP07, IP08: strictARP and time-outs are written', async (t) => {
  const running = await create({ 'ipvs.strictARP': true, 'ipvs.tcpTimeout': 700_000 })
  t.equal(sh('cat /proc/sys/net/ipv4/conf/all/arp_ignore'), '1\n')
  t.equal(sh('cat /proc/sys/net/ipv4/conf/all/arp_announce'), '2\n')
  t.match(sh('ipvsadm -L --timeout'), '700 120 300')
  await running.close()
  const refused = await create({ 'ipvs.tcpTimeout': 3e12 })
  t.match(warnings.at(-1), { tcp: 3e9, error: /EINVAL/ }, 'the mode goes on with those there are')
  t.match(sh('ipvsadm -L --timeout'), '700 120 300')
  await refused.close()
})

await t.test('live keys change while a connection goes on', async (t) => {
  const running = await create()
  const state = states().put(web).take()
  await running.apply(running.plan(state))
  const socket = await connect()
  const served = await ask(socket)
  t.equal(running.reconfigure(configWith({})), false, 'the same again needs no sync')
  const changed = configWith({ 'ipvs.scheduler': 'wrr', 'ipvs.tcpTimeout': 800_000 })
  t.equal(running.reconfigure(changed), true)
  t.match(sh('ipvsadm -L --timeout'), '800 120 300')
  running.forget()
  t.match(await running.apply(running.plan(state)), { full: true, failed: [] })
  t.match(table().join('\n'), '-A -t 10.96.0.10:80 -s wrr')
  t.equal(await ask(socket), served)
  socket.destroy()
  await running.close()
  await mode.cleanup(context)
})

await t.test('ipset lists what a restore has written', async (t) => {
  const sets = new IpSets()
  const batch = new IpSetBatch()
    .create({ name: 'T-NET', type: 'hash:ip,port,net', options: 'family inet6 maxelem 100' })
    .add('T-NET', 'fd00::1,sctp:80,fd00::/16')
    .add('T-NET', 'fd00::1,sctp:80,fd00::1')
    .create({ name: 'T-PORT', type: 'bitmap:port', options: 'range 0-65535' })
    .add('T-PORT', '30080')
  await sets.restore(batch)
  await sets.restore(batch)
  const listed = await sets.list()
  t.match(listed.get('T-NET'), { type: 'hash:ip,port,net', options: 'family inet6 maxelem 100' })
  t.strictSame([...listed.get('T-NET')!.members].sort(), [
    'fd00::1,sctp:80,fd00::/16',
    'fd00::1,sctp:80,fd00::1',
  ])
  t.strictSame([...listed.get('T-PORT')!.members], ['30080'])
  const other = new IpSetBatch().create({ name: 'T-PORT', type: 'hash:ip', options: 'family inet' })
  const notFound = { name: 'KernelError', kind: 'not-found' }
  await t.rejects(sets.restore(other), {
    name: 'KernelError',
    kind: 'exists',
    message: /create T-PORT hash:ip/,
  })
  await t.rejects(sets.restore(new IpSetBatch().destroy('T-NONE')), notFound)
  t.throws(() => new IpSetBatch().add('T-PORT', '1\ndestroy x'), RangeError)
  await sets.restore(new IpSetBatch().destroy('T-NET').destroy('T-PORT'))
})
