import { balances, type Balance, type Substitute, type Substitutes } from '../state/balance.js'
import type { ModeName, ProxyMode } from './config.js'

/**
 * What each mode uses for words of the annotation `kube-proxy-ts/balance` that it cannot do. What is
 * not here it does. docs/balancing.md shows the same as a table.
 */
export const substitutes: Readonly<Record<ModeName, Substitutes>> = {
  userspace: {},
  nftables: { 'least-connections': byChance('rules of the kernel do not count connections') },
  iptables: allBut('random', 'rules of this mode draw at random'),
  ebpf: allBut('random', 'programs of this mode draw at random'),
  ipvs: allBut(
    'round-robin',
    'the scheduler of the node or of kube-proxy-ts/ipvs-scheduler counts',
  ),
}

export function substitutesOf(mode: ProxyMode): Substitutes {
  return mode === '' || mode === 'auto' ? {} : substitutes[mode]
}

function byChance(why: string): Substitute {
  return { used: 'random', why }
}

function allBut(used: Balance, why: string): Substitutes {
  const others = balances.filter((each) => each !== used)
  return Object.fromEntries(others.map((each) => [each, { used, why }]))
}
