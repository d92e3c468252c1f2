import { mkdirSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import t, { type Test } from 'tap'
import { fullTable, notForwarding } from '../../lib/kernel/obstacles.js'
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
  const off = (name: string) => ({ sysctls: kernelWith(t, { [name]: '0' }) })
  t.match(notForwarding('IPv4', off('ipv4/ip_forward')), [
    /^net\.ipv4\.ip_forward is 0, .*set it to 1$/,
  ])
  t.same(notForwarding('IPv6', off('ipv4/ip_forward')), [])
  t.match(notForwarding('IPv6', off('ipv6/conf/all/forwarding')), [/conf\.all\.forwarding is 0/])
  t.end()
})

t.test('an interface that forwards on its own is not said to forward nothing', (t) => {
  const conf = (name: string) => `ipv4/conf/${name}/forwarding`
  const settings = { [conf('lo')]: '0', [conf('eth0')]: '1', [conf('cni0')]: '0' }
  const noneOn = kernelWith(t, { 'ipv4/ip_forward': '0', [conf('eth0')]: '0', [conf('lo')]: '1' })
  t.match(notForwarding('IPv4', { sysctls: noneOn }), [/ip_forward is 0/])
  const oneOn = { sysctls: kernelWith(t, { 'ipv4/ip_forward': '0', ...settings }) }
  t.same(notForwarding('IPv4', oneOn), [], 'nothing tells by which interface packets will come')
  t.match(notForwarding('IPv4', { ...oneOn, inInterface: 'cni0' }), [/net\.ipv4\.ip_forward is 0/])
  const oneOff = { sysctls: kernelWith(t, { 'ipv4/ip_forward': '1', ...settings }) }
  t.same(notForwarding('IPv4', { ...oneOff, inInterface: 'eth0' }), [])
  t.match(notForwarding('IPv4', { ...oneOff, inInterface: 'cni0' }), [
    /^net\.ipv4\.conf\.cni0\.forwarding is 0/,
  ])
  t.end()
})
