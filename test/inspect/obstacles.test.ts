import { mkdirSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import t, { type Test } from 'tap'
import { fullTable, notForwarding, otherRules } from '../../lib/inspect/obstacles.js'
import { Sysctls } from '../../lib/kernel/sysctl.js'

function kernelWith(t: Test, values: Readonly<Record<string, string>>): Sysctls {
  const root = t.testdir({})
  for (const [name, value] of Object.entries(values)) {
    const file = join(root, 'proc/sys/net', name)
    mkdirSync(dirname(file), { recursive: true })
    writeFileSync(file, `${value}\n`)
  }
  return new Sysctls(root)
}

const table = (count: number) => ({
  'netfilter/nf_conntrack_count': String(count),
  'netfilter/nf_conntrack_max': '1000',
})

t.test('a connection table is full when the kernel drops new connections', (t) => {
  t.match(fullTable(kernelWith(t, table(1000))), [/table is full \(1000 of 1000.*maxPerCore$/])
  t.same(fullTable(kernelWith(t, table(900))), [])
  t.same(fullTable(kernelWith(t, {})), [], 'a kernel without connection tracking')
  t.end()
})

t.test('a node that forwards no packets of a family is told with the setting', (t) => {
  const kernel = kernelWith(t, { 'ipv4/ip_forward': '0', 'ipv6/conf/all/forwarding': '1' })
  t.match(notForwarding('IPv4', kernel), [/^net\.ipv4\.ip_forward is 0, .*set it to 1$/])
  t.same(notForwarding('IPv6', kernel), [])
  t.match(notForwarding('IPv6', kernelWith(t, { 'ipv6/conf/all/forwarding': '0' })), [/forwarding/])
  t.end()
})

t.test('rules of other modes are told, and those of the own mode are not', async (t) => {
  const list = (...names: string[]) => Promise.resolve(new Set(names))
  const found = (mode: 'nftables' | 'ebpf' | 'iptables' | 'userspace', ...names: string[]) =>
    otherRules(mode, 'IPv4', () => list(...names))
  t.match(await found('nftables', 'nat KUBE-SERVICES', 'kube-proxy services'), [
    /IPv4 rules of iptables or ipvs mode \(chain nat KUBE-SERVICES\).*restart this one/,
  ])
  t.same(await found('ebpf', 'kube-proxy services', 'nat DOCKER'), [])
  t.match(await found('iptables', 'nat KUBE-SERVICES', 'nat KUBE-PORTALS-CONTAINER'), [
    /rules of userspace mode/,
  ])
  t.match(await found('userspace', 'kube-proxy services'), [/rules of nftables or ebpf mode/])
  t.same(await otherRules('nftables', 'IPv4', () => Promise.resolve(undefined)), [], 'no rights')
})
