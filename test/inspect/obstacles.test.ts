import t from 'tap'
import { otherRules } from '../../lib/inspect/obstacles.js'

t.test('rules of other modes are told, and those of the own mode are not', async (t) => {
  const list = (names: readonly string[]) => () => Promise.resolve(new Set(names))
  const backend = () => Promise.resolve('legacy' as const)
  const found = (mode: 'nftables' | 'ebpf' | 'iptables' | 'userspace', ...names: string[]) =>
    otherRules(mode, 'IPv4', { nft: list(names), legacy: list([]), backend })
  t.match(await found('nftables', 'nat KUBE-SERVICES', 'kube-proxy services'), [
    /IPv4 rules of iptables or ipvs mode \(chain nat KUBE-SERVICES\).*restart this one/,
  ])
  t.same(await found('ebpf', 'kube-proxy services', 'nat DOCKER'), [])
  t.match(await found('iptables', 'nat KUBE-SERVICES', 'nat KUBE-PORTALS-CONTAINER'), [
    /rules of userspace mode/,
  ])
  t.match(await found('userspace', 'kube-proxy services'), [/rules of nftables or ebpf mode/])
  const nothing = { nft: () => Promise.resolve(undefined), legacy: list([]), backend }
  t.same(await otherRules('nftables', 'IPv4', nothing), [], 'no rights')

  const old = { ...nothing, legacy: list(['nat KUBE-SERVICES']) }
  t.match(await otherRules('nftables', 'IPv4', old), [/KUBE-SERVICES of iptables-legacy\), which/])
  t.same(await otherRules('iptables', 'IPv4', old), [], 'this mode in the one backend that has it')
  const both = { ...old, nft: list(['nat KUBE-SERVICES']) }
  t.match(await otherRules('iptables', 'IPv4', both), [/\(chain nat KUBE-SERVICES\), which/])
})
