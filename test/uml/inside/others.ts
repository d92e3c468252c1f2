/** Parts of other programs on the same node stay as they are. */
import t from 'tap'
import { configWith } from '../../../lib/config/load.js'
import { mode } from '../../../lib/modes/ipvs/index.js'
import { cleanLeftovers } from '../../../lib/modes/leftovers.js'
import { service, states } from '../../support/states.js'
import { context, create, sh, table, web } from './node.js'

const theirs = {
  make: `
    ip link add lb0 type dummy; ip address add 198.51.100.9/32 dev lb0
    ipvsadm -A -t 198.51.100.9:443 -s wlc; ipvsadm -a -t 198.51.100.9:443 -r 10.180.0.1:9443 -g -w 5
    ipvsadm -A -t 192.0.2.1:8443 -s rr; ipvsadm -a -t 192.0.2.1:8443 -r 10.180.0.2:8443 -m
    ipvsadm -A -u 192.0.2.1:30080 -s sh
    ipvsadm -A -f 7 -s lc
    ipset create theirs hash:ip; ipset add theirs 198.51.100.9
    iptables -t nat -N THEIRS; iptables -t nat -A PREROUTING -m set --match-set theirs dst -j THEIRS
    iptables -A INPUT -p tcp --dport 9443 -j ACCEPT`,
  remove: `
    ip link del lb0; ipvsadm -C
    iptables -t nat -D PREROUTING -m set --match-set theirs dst -j THEIRS; iptables -t nat -X THEIRS
    iptables -D INPUT -p tcp --dport 9443 -j ACCEPT; ipset destroy theirs`,
  see: () => ({
    servers: table().filter((line) => /198.51.100.9:443|:8443|-u 192.0.2.1:30080|-f 7/.test(line)),
    sets: sh('ipset save theirs'),
    rules: sh('iptables-save')
      .split('\n')
      .filter((line) => /THEIRS|9443/.test(line))
      .map((line) => line.replace(/\[\d+:\d+\]/, '')),
    device: sh('ip -o -4 address show dev lb0').replace(/\s+/g, ' '),
  }),
}

await t.test(
  'IP29, IP30, IP35, IP36: virtual servers, sets and rules of other programs stay',
  async (t) => {
    sh(theirs.make)
    const before = theirs.see()
    t.equal(before.servers.length, 6)
    t.equal(before.rules.length, 3)
    const running = await create({ 'ipvs.excludeCIDRs': ['10.96.0.96/28'] })
    const own = service({ name: 'own', clusterIp: '10.96.0.100', endpoints: ['10.180.0.1'] })
    const cluster = states().put(web, own)
    const first = running.plan(cluster.take())
    t.strictSame((await running.apply(first)).failed, [])
    t.strictSame(theirs.see(), before, 'at the first sync')
    const gone = { namespace: 'default', name: 'web' }
    const next = running.plan(cluster.remove(gone).take())
    await running.apply(next)
    running.forget()
    await running.apply(running.plan(cluster.take()))
    t.strictSame(theirs.see(), before, 'at a sync that deletes, and at a full one')
    await running.close()
    const again = await create({ 'ipvs.excludeCIDRs': ['10.96.0.96/28'] })
    await again.apply(again.plan(cluster.remove({ ...gone, name: 'own' }).take()))
    t.match(table().join('\n'), '-A -t 10.96.0.100:80', 'IP29: an excluded range is not cleaned')
    await again.close()
    await cleanLeftovers('nftables', context)
    t.strictSame(theirs.see(), before, 'when another mode starts')
    await mode.cleanup(context)
    t.strictSame(theirs.see(), before, 'at cleanup')
    t.equal(sh('ipset list -n'), 'theirs\n', 'IPv6 sets go too')
    t.throws(() => sh('ip link show kube-ipvs0'))
    sh(theirs.remove)
  },
)

await t.test('IP29: cleanup leaves virtual servers in excluded ranges alone', async (t) => {
  const running = await create()
  await running.apply(running.plan(states().put(web).take()))
  await running.close()
  sh('ipvsadm -A -t 192.0.2.9:30080 -s rr')
  await mode.cleanup(context, configWith({ 'ipvs.excludeCIDRs': ['192.0.2.9/32'] }))
  t.strictSame(table(), ['-A -t 192.0.2.9:30080 -s rr'])
  sh('ipvsadm -C')
})
