import t from 'tap'
import { takeover } from '../support/takeover.js'
import { cgroupSkip } from '../support/cgroup-client.js'
import { skip } from './proxy-world.js'

for (const [from, to] of [
  ['iptables', 'iptables'],
  ['iptables', 'nftables'],
  ['iptables', 'userspace'],
  ['nftables', 'nftables'],
  ['nftables', 'iptables'],
  ['iptables', 'ebpf'],
  ['nftables', 'ebpf'],
] as const) {
  t.test(
    `L16: kube-proxy in ${from} mode hands over to ${to} mode and back, and no connection breaks`,
    { skip: skip || (to === 'ebpf' && cgroupSkip) },
    (t) => takeover(t, from, to),
  )
}
