/**
 * Whose address an endpoint sees. The client's is kept if kernel modes keep it and if the answers
 * come back to this node.
 */
import t from 'tap'
import { SourceKeeper, SourceSwitch } from '../../../lib/modes/userspace/datapath/source-keeper.js'
import type { SourceRule } from '../../../lib/modes/userspace/datapath/source-rule.js'
import type { Route } from '../../../lib/kernel/routes.js'
import { parseCidr } from '../../../lib/state/ip.js'

const bridge = { isLocal: false, hasGateway: false, device: 3 }
const uplink = { isLocal: false, hasGateway: true, device: 2 }
const routes: Readonly<Record<string, Route>> = {
  '10.244.1.10': bridge,
  '10.244.1.21': bridge,
  '10.244.2.7': uplink,
  '10.244.2.8': uplink,
  '192.0.2.9': uplink,
  '192.168.50.1': { isLocal: true, hasGateway: false, device: 1 },
}
const devices: Readonly<Record<number, { name: string; kind: string }>> = {
  1: { name: 'lo', kind: '' },
  2: { name: 'eth0', kind: '' },
  3: { name: 'cni0', kind: 'bridge' },
}
const clusterCidr = parseCidr('10.244.0.0/16')
const clusterIp = { ip: '10.96.0.10', port: 80 }
const nodePort = { ip: '192.168.50.1', port: 30080 }
const rule: SourceRule = {
  clusterIp,
  pods: { by: 'cidrs', cidrs: clusterCidr ? [clusterCidr] : [] },
  masqueradesAll: false,
  external: 'hidden',
  isLocalList: false,
  avoidsBridges: false,
}
const pod = '10.244.1.10'
const podThere = '10.244.2.7'
const outsider = '192.0.2.9'
const here = { key: '', ip: '10.244.1.21', port: 8080, isLocal: true }
const there = { key: '', ip: '10.244.2.8', port: 8080, isLocal: false }

function keeper(options: { bridgesAreFiltered?: boolean; now?: () => number } = {}) {
  const ready = new SourceSwitch()
  ready.set('IPv4', true)
  const asked: string[] = []
  const reader = {
    to: (ip: string) => {
      asked.push(ip)
      return routes[ip]
    },
    device: (index: number) => devices[index],
  }
  const { bridgesAreFiltered = false, now = () => 0 } = options
  const made = new SourceKeeper(ready.shared, reader, now, () => bridgesAreFiltered)
  return {
    ready,
    asked,
    keeps: (ip: string, target: typeof here, to: typeof clusterIp | undefined, given = rule) =>
      made.keeps(given, { client: { ip, port: 4000 }, asked: to, target }),
  }
}

t.test('US81: pods are kept behind a ClusterIP, others are not', (t) => {
  const { keeps } = keeper()
  t.ok(keeps(pod, here, clusterIp))
  t.ok(keeps(pod, there, clusterIp), 'its answers come back to this node')
  t.notOk(keeps(outsider, here, clusterIp))
  t.notOk(keeps(pod, here, clusterIp, { ...rule, masqueradesAll: true }))
  t.notOk(keeps(pod, { ...here, ip: pod }, clusterIp), 'S24: a pod that reaches itself')
  t.notOk(keeps('192.168.50.1', here, clusterIp), 'the node itself')
  t.notOk(keeps('203.0.113.1', here, clusterIp), 'no route leads back')
  const none = { ...rule, pods: { by: 'none' } } as const
  t.ok(keeps(outsider, here, clusterIp, none), 'R08: without ranges nobody is masqueraded')
  t.end()
})

t.test('US81: a client is hidden where answers would go past this node', (t) => {
  const { keeps } = keeper()
  t.ok(keeps(podThere, here, clusterIp))
  t.notOk(keeps(podThere, there, clusterIp))
  const own = { key: '', ip: '192.168.50.1', port: 8080, isLocal: true }
  t.ok(keeps(pod, own, clusterIp), 'an endpoint in the network of the node')
  t.notOk(keeper({ bridgesAreFiltered: true }).keeps(pod, here, clusterIp), 'pods on one bridge')
  t.ok(keeper({ bridgesAreFiltered: true }).keeps(pod, there, clusterIp))
  const auto = { ...rule, avoidsBridges: true }
  t.notOk(keeps(pod, here, clusterIp, auto), 'auto does not rely on the routes of pods')
  t.ok(keeps(pod, there, clusterIp, auto))
  t.end()
})

t.test('US81: external addresses keep every client with policy Local only', (t) => {
  const { keeps } = keeper()
  const local = { ...rule, external: 'kept', isLocalList: true } as const
  t.ok(keeps(outsider, here, nodePort, local))
  t.notOk(keeps(outsider, there, nodePort, local))
  t.notOk(keeps(outsider, here, clusterIp, local))
  t.notOk(keeps(outsider, here, nodePort))
  t.notOk(keeps(pod, here, nodePort))
  t.ok(keeps(pod, there, nodePort, { ...local, isLocalList: false }))
  t.end()
})

t.test('US81: a datagram does not tell what its client asked', (t) => {
  const { keeps } = keeper()
  const local = { ...rule, external: 'kept', isLocalList: true } as const
  t.ok(keeps(pod, here, undefined))
  t.notOk(keeps(outsider, here, undefined))
  t.ok(keeps(outsider, here, undefined, local))
  t.notOk(keeps(outsider, here, undefined, { ...local, isLocalList: false }))
  t.notOk(keeps(pod, here, undefined, { ...rule, masqueradesAll: true }))
  t.ok(keeps(outsider, here, undefined, { ...rule, pods: { by: 'none' }, external: 'none' }))
  t.end()
})

t.test('US81: pods are recognised by the device that leads to them', (t) => {
  const { keeps } = keeper()
  const by = (pods: SourceRule['pods']) => keeps(pod, here, clusterIp, { ...rule, pods })
  t.ok(by({ by: 'interface', name: 'cni0' }))
  t.notOk(by({ by: 'interface', name: 'cni1' }))
  t.ok(by({ by: 'interface-prefix', prefix: 'cni' }))
  t.notOk(by({ by: 'interface-prefix', prefix: 'veth' }))
  t.end()
})

t.test('US81: nobody is kept until the kernel is ready; routes are remembered for a while', (t) => {
  let now = 0
  const { keeps, ready, asked } = keeper({ now: () => now })
  ready.set('IPv4', false)
  t.notOk(keeps(pod, here, clusterIp))
  ready.set('IPv4', true)
  for (let round = 0; round < 3; round++) t.ok(keeps(pod, here, clusterIp))
  t.same(asked, [pod, here.ip])
  now = 60_000
  t.ok(keeps(pod, here, clusterIp))
  t.equal(asked.length, 4)
  t.end()
})
