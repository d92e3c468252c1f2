import type { Substitute, Substitutes } from '../state/balance.js'
import type { ModeName, ProxyMode } from './config.js'

const countsNothing: Substitute = {
  used: 'random',
  why: 'rules of the kernel do not count connections',
}

/**
 * The substitutes that each mode uses for words of the annotation `kube-proxy-ts/balance` that it
 * cannot follow. It follows all other words. docs/balancing.md shows the same as a table.
 */
export const substitutes: Readonly<Record<ModeName, Substitutes>> = {
  userspace: {},
  winuserspace: {},
  nftables: { 'least-connections': countsNothing },
  iptables: {
    'least-connections': countsNothing,
    maglev: { used: 'source-hash', why: 'rules of iptables have no maps' },
  },
  // Its programs leave this word to the packet path, which is that of nftables mode.
  ebpf: { 'least-connections': { ...countsNothing, onlyForPackets: true } },
  ipvs: {
    random: { used: 'round-robin', why: 'no scheduler of the kernel draws by chance alone' },
    maglev: {
      used: 'maglev',
      why: "the kernel's own table is smaller, and more clients move when an endpoint comes or goes",
      by: 'the scheduler mh',
    },
  },
}

export function substitutesOf(mode: ProxyMode): Substitutes {
  return mode === '' || mode === 'auto' ? {} : substitutes[mode]
}
