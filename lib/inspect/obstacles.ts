import { Sysctls } from '../kernel/sysctl.js'
import { chainNames } from '../modes/chain-names.js'
import { chains as iptablesChains } from '../modes/iptables/names.js'
import { chains as nftablesChains, tableName } from '../modes/nftables/names.js'
import { natChains } from '../modes/userspace/names.js'
import type { ModeName } from '../config/config.js'
import type { IpFamily } from '../state/ip.js'

/** What stops connections on this node although every rule of the mode is right. */

/** New connections find no room in the connection table; those to the proxy itself, too. */
export function fullTable(sysctls = new Sysctls()): readonly string[] {
  const read = (name: string) => sysctls.readFile(`proc/sys/net/netfilter/nf_conntrack_${name}`)
  const [count, max] = [Number(read('count')), Number(read('max'))]
  // The kernel counts before it looks, so a full table has some entries more or less.
  if (!(max > 0) || !(count >= max * 0.99)) return []
  return [
    `the connection table is full (${count} of ${max}, net.netfilter.nf_conntrack_max), so the kernel drops new connections; raise conntrack.maxPerCore`,
  ]
}

const forwarding = {
  IPv4: ['net.ipv4.ip_forward', 'proc/sys/net/ipv4/ip_forward'],
  IPv6: ['net.ipv6.conf.all.forwarding', 'proc/sys/net/ipv6/conf/all/forwarding'],
} as const satisfies Record<IpFamily, readonly [name: string, file: string]>

/** Packets of others reach no endpoint. Those of the node itself need no forwarding. */
export function notForwarding(family: IpFamily, sysctls = new Sysctls()): readonly string[] {
  const [name, file] = forwarding[family]
  if (sysctls.readFile(file) !== '0') return []
  return [`${name} is 0, so this node passes no packet of others on to an endpoint; set it to 1`]
}

const signs = [
  { modes: ['iptables', 'ipvs'], chain: `nat ${iptablesChains.services}` },
  { modes: ['userspace'], chain: `nat ${natChains.portalsContainer}` },
  { modes: ['nftables', 'ebpf'], chain: `${tableName} ${nftablesChains.services}` },
] as const satisfies readonly { readonly modes: readonly ModeName[]; readonly chain: string }[]

/** Rules of other modes: the kernel uses them, too, and they may decide first. */
export async function otherRules(
  mode: ModeName,
  family: IpFamily,
  list: typeof chainNames = chainNames,
): Promise<readonly string[]> {
  const names = await list(family)
  return signs
    .filter(({ modes, chain }) => !modes.some((own) => own === mode) && names?.has(chain) === true)
    .map(
      ({ modes, chain }) =>
        `the kernel also has ${family} rules of ${modes.join(' or ')} mode (chain ${chain}), which may decide before those of ${mode} mode; end the other proxy if one runs, then restart this one, which removes them`,
    )
}
