/** A node with addresses of one family only serves that family of Services that have both. */
import t, { type Test } from 'tap'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { createServer } from 'node:net'
import { once } from 'node:events'
import type { IpFamily } from '../../lib/state/ip.js'
import { answerOf, ip } from '../support/changing-node.js'
import { kubeProxy, startProxy } from '../support/live-daemon.js'
import { enterPrivateNetns } from '../support/private-netns.js'
import { untilSeen } from '../support/until.js'

const skip = enterPrivateNetns() ?? false
const modes = ['nftables', 'iptables', 'userspace'] as const
const nodes = {
  IPv4: { address: '192.0.2.1/24', gateway: '192.0.2.254', clusterIp: '10.96.0.10' },
  IPv6: { address: '2001:db8::1/64', gateway: '2001:db8::fe', clusterIp: 'fd00:96::10' },
} satisfies Record<IpFamily, object>
const nodePort = 30080
const port = 8080

if (skip === false) ip('link set lo up')

for (const family of ['IPv4', 'IPv6'] as const) {
  for (const mode of modes) {
    t.test(`${mode}: a node with ${family} alone`, { skip }, async (t) => {
      const host = setUp(t, family)
      await backend(t, host)
      const manifests = t.testdir()
      writeFileSync(join(manifests, 'services.yaml'), objects())
      const proxy = await startProxy(t, [
        ...['--proxy-mode', mode, '--proxy-mode-fallback', 'none', '--manifests', manifests],
        ...['--hostname-override', 'node-1', '--nodeport-addresses', nodes[family].address],
        ...['--cluster-cidr', '10.244.0.0/16,fd00:10:244::/48', '--metrics-bind-address', ''],
      ])
      await untilSeen('the ClusterIP', () => answerOf(nodes[family].clusterIp, 80), /^answer$/)
      await untilSeen('the node port', () => answerOf(host, nodePort), /^answer$/)
      const health = await fetch('http://127.0.0.1:10256/healthz')
      t.equal(health.status, 200)
      t.notMatch(proxy.output(), /"level":"error"/)
      await proxy.end('SIGTERM')
      t.equal((await kubeProxy('cleanup')).code, 0)
    })
  }
}

t.test('IPv6 that is switched on after the start is told of', { skip }, async (t) => {
  const host = setUp(t, 'IPv4')
  await backend(t, host)
  const ipv6 = '/proc/sys/net/ipv6/conf/all/disable_ipv6'
  writeFileSync(ipv6, '1')
  t.teardown(() => writeFileSync(ipv6, '0'))
  const manifests = t.testdir({ 'services.yaml': objects() })
  const proxy = await startProxy(t, [
    ...['--proxy-mode', 'nftables', '--manifests', manifests, '--hostname-override', 'node-1'],
    ...['--metrics-bind-address', ''],
  ])
  await untilSeen('the ClusterIP', () => answerOf(nodes.IPv4.clusterIp, 80), /^answer$/)
  t.notMatch(proxy.output(), /until the proxy is restarted/)
  writeFileSync(ipv6, '0')
  ip(`-6 addr add ${nodes.IPv6.address} dev v0 nodad`)
  await untilSeen('the warning', async () => proxy.output(), /IPv6 was off .* is restarted/)
})

/** Gives the node its only address, and returns it. */
function setUp(t: Test, family: IpFamily): string {
  const { address, gateway } = nodes[family]
  const version = family === 'IPv4' ? '-4' : '-6'
  ip('link add v0 type veth peer name v1')
  t.teardown(() => ip('link delete v0'))
  // Without this the kernel gives each interface an IPv6 address by itself.
  ip('link set v0 addrgenmode none')
  ip('link set v1 addrgenmode none')
  ip('link set v0 up')
  ip('link set v1 up')
  ip(`${version} addr add ${address} dev v0${family === 'IPv6' ? ' nodad' : ''}`)
  ip(`${version} route add default via ${gateway} dev v0`)
  return address.split('/')[0] ?? ''
}

async function backend(t: Test, host: string): Promise<void> {
  const server = createServer((socket) => {
    socket.on('error', () => undefined)
    socket.on('data', () => socket.write('answer'))
  })
  server.listen(port, host)
  await once(server, 'listening')
  t.teardown(() => server.close())
}

/** One Service of both families, with an endpoint in each. */
function objects(): string {
  const clusterIPs = [nodes.IPv4.clusterIp, nodes.IPv6.clusterIp]
  const service = {
    ...{ apiVersion: 'v1', kind: 'Service', metadata: { name: 'web', namespace: 'default' } },
    spec: {
      ...{ type: 'NodePort', clusterIP: clusterIPs[0], clusterIPs },
      ...{ ipFamilies: ['IPv4', 'IPv6'], ipFamilyPolicy: 'PreferDualStack' },
      ports: [{ name: '', protocol: 'TCP', port: 80, nodePort, targetPort: port }],
    },
  }
  const slices = Object.entries(nodes).map(([addressType, { address }]) => ({
    ...{ apiVersion: 'discovery.k8s.io/v1', kind: 'EndpointSlice', addressType },
    metadata: {
      ...{ name: `web-${addressType.toLowerCase()}`, namespace: 'default' },
      labels: { 'kubernetes.io/service-name': 'web' },
    },
    ports: [{ name: '', protocol: 'TCP', port }],
    endpoints: [{ addresses: [address.split('/')[0]], conditions: { ready: true } }],
  }))
  return [service, ...slices].map((each) => JSON.stringify(each)).join('\n---\n')
}
