import t from 'tap'
import { execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { createServer } from 'node:net'
import {
  answerOf,
  clusterIp,
  ip,
  nodePort,
  page,
  setUpNode,
  startOnNode,
} from '../support/changing-node.js'
import { enterPrivateNetns } from '../support/private-netns.js'
import { patienceMs, untilSeen } from '../support/until.js'

/**
 * A running proxy uses a changed configuration and a changed node without a restart and without a
 * lost connection. Everything is in a network namespace of this test.
 */

const skip = enterPrivateNetns() ?? false
if (skip === false) setUpNode()
const ruleset = () => execFileSync('nft', ['list', 'ruleset'], { encoding: 'utf8' })
const nat = () => execFileSync('iptables-save', ['-t', 'nat'], { encoding: 'utf8' })
const modes = ['nftables', 'iptables', 'userspace'] as const
const at = (address: string) => () => answerOf(address, nodePort)
const established = '/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established'

for (const mode of modes) {
  t.test(`${mode}: the configuration changes while connections go on`, { skip }, async (t) => {
    const proxy = await startOnNode(t, mode, 'nodePortAddresses: [192.0.2.1/32]\n')
    await untilSeen('the node port', at('192.0.2.1'), /^8080$/)
    t.not(await answerOf('192.0.2.2', nodePort), '8080')
    const live = [
      'nodePortAddresses: [192.0.2.2/32]',
      'detectLocalMode: ClusterCIDR',
      'clusterCIDR: 10.99.0.0/16',
      'conntrack: {tcpEstablishedTimeout: 1h30m}',
      'iptables: {masqueradeBit: 13, syncPeriod: 20s}',
      'nftables: {masqueradeBit: 13, syncPeriod: 20s}',
      'healthzBindAddress: 127.0.0.1:10257',
      'logging: {verbosity: 4}',
      '',
    ].join('\n')
    proxy.configure(live)
    await untilSeen('the other node port', at('192.0.2.2'), /^8080$/)
    await untilSeen('the old node port', at('192.0.2.1'), /REFUSED|silence|closed/)
    t.equal(readFileSync(established, 'utf8').trim(), '5400')
    await untilSeen('the new health port', () => page('/healthz', 10257), /healthy/)
    await t.rejects(page('/healthz', 10256), 'the old one is closed')
    t.match(JSON.parse(await page('/configz')), {
      'kubeproxy.config.k8s.io': { nodePortAddresses: ['192.0.2.2/32'] },
      origins: { clusterCIDR: `${proxy.file}:6` },
      waitingForRestart: {},
    })
    t.match(proxy.output(), /"level":"debug"/, 'the verbosity is live')
    if (mode !== 'userspace') {
      await untilSeen('the rules', ruleset, /10\.99\.0\.0\/16/)
      await untilSeen('another bit of the mark', ruleset, /0x0*2000/)
      await untilSeen('the end of the old one', ruleset, /^((?!0x0*4000\b).)*$/s)
      proxy.configure(live.replaceAll('masqueradeBit', 'masqueradeAll: true, masqueradeBit'))
      await untilSeen('rules that do not look at the client', ruleset, /^((?!10\.99\.0\.0).)*$/s)
    }

    proxy.configure(live.replace('masqueradeBit: 13', 'masqueradeBit: 99'))
    await untilSeen(
      'the complaint',
      () => page('/healthz?verbose'),
      /\[-\]configuration: wrong, .*99/,
    )
    t.match(await page('/metrics'), /kubeproxy_config_file_valid 0/)
    proxy.remove()
    await untilSeen('another', () => page('/healthz?verbose'), /\[-\]configuration: wrong, .*gone/)
    t.equal(await answerOf('192.0.2.2', nodePort, patienceMs), '8080', 'the last good one stays')

    const other = mode === 'userspace' ? 'iptables' : 'userspace'
    const waiting = `${live}bindAddress: 192.0.2.1\n`
    proxy.configure(waiting, other)
    await untilSeen(
      'what waits',
      () => page('/healthz?verbose'),
      /restart: bindAddress .*, mode from "\w+" to "\w+"/,
    )
    t.match(await page('/healthz?verbose'), /\[\+\]configuration: valid/)
    t.match(await page('/metrics'), /kubeproxy_config_keys_waiting_for_restart 2/)
    const more = `${waiting}oomScoreAdj: 100\nresourceContainer: /proxy\n`
    proxy.configure(more, other)
    await untilSeen('one more value', () => page('/configz'), /"oomScoreAdj": 100/)
    proxy.configure(`${more}enableProfiling: true\n`, other)
    await untilSeen('the last value', () => page('/configz'), /"enableProfiling": true/)
    t.equal(proxy.said('resourceContainer is no longer known').length, 1, 'as at the start')
    const told = proxy.said('needs a restart').map(({ path, from, to }) => ({ path, from, to }))
    t.same(
      told.sort((a, b) => (String(a.path) < String(b.path) ? -1 : 1)),
      [
        { path: 'bindAddress', from: '0.0.0.0', to: '192.0.2.1' },
        { path: 'mode', from: mode, to: other },
      ],
      'each is said once',
    )
    t.equal(await page('/proxyMode'), mode, 'the old mode goes on')
    await proxy.finish()
  })

  t.test(`${mode}: the node changes while connections go on`, { skip }, async (t) => {
    const proxy = await startOnNode(
      t,
      mode,
      'detectLocalMode: NodeCIDR\nnodePortAddresses: [primary]\n',
    )
    t.teardown(() => execFileSync('ip', ['addr', 'flush', 'to', '192.0.2.3/32']))
    await untilSeen('the node port', at('192.0.2.1'), /^8080$/)

    proxy.setNode({ zone: 'b' })
    await untilSeen('the endpoint of the other zone', () => answerOf(clusterIp, 80), /^8081$/)
    proxy.setNode({ podCidr: '10.244.7.0/24' })
    await untilSeen('the endpoint of the zone', () => answerOf(clusterIp, 80), /^8080$/)
    if (mode !== 'userspace') {
      await untilSeen('the rules', ruleset, /10\.244\.7\.0\/24/)
      t.notMatch(ruleset(), /10\.244\.1\.0\/24/)
    }

    ip('addr add 192.0.2.3/24 dev v0')
    proxy.setNode({ address: '192.0.2.3' })
    await untilSeen('the node port at the new address', at('192.0.2.3'), /^8080$/)
    await untilSeen('the node port at the old one', at('192.0.2.1'), /REFUSED|silence|closed/)
    proxy.configure('detectLocalMode: NodeCIDR\nnodePortAddresses: [192.0.2.0/24]\n')
    await untilSeen('the old one again', at('192.0.2.1'), /^8080$/)
    ip('addr add 192.0.2.4/24 dev v0')
    await untilSeen('the node port at one more address', at('192.0.2.4'), /^8080$/)
    ip('addr del 192.0.2.4/24 dev v0')
    // The other end is down, so this interface has no carrier. Its address is local all the same.
    ip('link add v2 type veth peer name v3')
    ip('link set v2 up')
    ip('addr add 192.0.2.5/32 dev v2')
    await untilSeen('the node port of an interface without carrier', at('192.0.2.5'), /^8080$/)
    ip('link del v2')
    // Kubelet is late: no interface has the address of the object.
    proxy.setNode({ address: '192.0.2.77', zone: 'b' })
    await untilSeen('the zone', () => answerOf(clusterIp, 80), /^8081$/)
    // Userspace mode redirects connections to an address of the node, and they end with it.
    await untilSeen('rules that lead elsewhere', nat, /^((?!--to-destination 192\.0\.2\.3:).)*$/s)
    await proxy.settled()
    ip('addr del 192.0.2.3/24 dev v0')
    // The node registers anew: for a moment it has no object, and then an object without pod CIDR.
    proxy.setNode(undefined)
    await untilSeen('the node port of then', () => answerOf('192.0.2.1', nodePort + 1), /^8081$/)
    t.equal(await answerOf(clusterIp, 80, patienceMs), '8081', 'the zone stays')
    proxy.setNode({ podCidr: '' })
    await untilSeen('the new zone', () => answerOf(clusterIp, 80), /^8080$/)
    if (mode !== 'userspace') t.match(ruleset(), /10\.244\.1\.0\/24/, 'the pod CIDR stays')
    await proxy.finish()
  })

  t.test(`${mode}: what fails is told while it fails, and no longer`, { skip }, async (t) => {
    const periods = 'iptables: {syncPeriod: 1s}\nnftables: {syncPeriod: 1s}\n'
    const proxy = await startOnNode(t, mode, periods)
    const status = () => page('/healthz?verbose')
    t.match(await status(), /\[\+\]IPv4 syncs: \d+ syncs?, 0 failed\n/)
    t.match(await status(), /\[\+\]foreign changes: none/)
    // Another program becomes the owner of the table, and only the owner may change it.
    const table = mode === 'nftables' ? 'ip kube-proxy' : 'ip nat'
    const thief = spawn('nft', ['-i'], { stdio: ['pipe', 'ignore', 'inherit'] })
    const gone = once(thief, 'exit')
    thief.stdin.write(`delete table ${table}; add table ${table} { flags owner; }\n`)
    await untilSeen(
      'failing syncs',
      status,
      /\[-\]IPv4 syncs: .* [1-9]\d* failed; failing since 2\S+: \w/,
    )
    t.match(await status(), /\[\+\]IPv6 syncs/, 'the other family goes on')
    await untilSeen(
      'the foreign change',
      status,
      /\[-\]foreign changes: [1-9].*, the newest not repaired yet/,
    )
    thief.stdin.end()
    await gone
    await untilSeen('the end of it', status, /\[\+\]IPv4 syncs: .* [1-9]\d* failed\n/)
    await untilSeen('the repair', status, /\[\+\]foreign changes: [1-9].*, all repaired/)
    t.equal(await answerOf(clusterIp, 80, patienceMs), '8080')
    t.match(await page('/metrics'), /kubeproxy_foreign_changes_total [1-9]/)
    await proxy.abandon()
  })
}

t.test(
  'service ports that cannot be programmed, and a fall-back, are told',
  { skip },
  async (t) => {
    const taken = createServer().listen(nodePort, '0.0.0.0')
    await once(taken, 'listening')
    t.teardown(() => taken.close())
    const proxy = await startOnNode(t, 'ipvs', 'iptables: {syncPeriod: 1s}\n')
    const status = () => page('/healthz?verbose')
    if ((await page('/proxyMode')) === 'ipvs') {
      await proxy.abandon()
      t.comment('this kernel has IPVS, so there is no fall-back')
      return
    }
    t.match(await status(), /\[-\]mode: userspace: this node cannot run ipvs mode: \w/)
    t.match(
      await status(),
      /\[-\]IPv4 service ports: 1 not programmed since 2\S+; d\/web\/TCP: .*30080/,
    )
    t.match(await page('/metrics'), /service_ports_not_programmed\{ip_family="IPv4"\} 1/)
    await new Promise((resolve) => taken.close(resolve))
    await untilSeen('the retry', status, /\[\+\]IPv4 service ports: all programmed/)
    await proxy.abandon()
  },
)
