import { Iptables, tables, type Backend } from '../kernel/iptables.js'
import { legacyTables } from '../kernel/iptables/flavour.js'
import type { IpFamily } from '../state/ip.js'

/**
 * All chains of nf_tables in this network namespace, as `table chain`. To ask iptables starts a
 * program for each chain. Undefined where they cannot be listed.
 */
export async function chainNames(family: IpFamily): Promise<ReadonlySet<string> | undefined> {
  try {
    // Imported late: koffi does not load on every node.
    const { openChannel } = await import('../kernel/netlink/channel.js')
    const { protocols } = await import('../kernel/netlink/protocol.js')
    const { TableReader } = await import('../kernel/nftables-netlink/table-reader.js')
    const channel = openChannel(protocols.netfilter)
    try {
      return await new TableReader(channel).chainNames(family === 'IPv4' ? 'ip' : 'ip6')
    } finally {
      channel.close()
    }
  } catch {
    return undefined
  }
}

/** The chains of table nat of iptables-legacy. Most nodes have no such table, and start no program. */
export async function legacyChainNames(family: IpFamily): Promise<ReadonlySet<string>> {
  if (legacyTables(family)?.includes('nat') !== true) return new Set()
  try {
    const iptables = await Iptables.open({ family, backend: 'legacy' })
    const saved = await iptables.save('nat', () => false)
    return new Set(
      saved.flatMap(({ table, chains }) => [...chains.keys()].map((name) => `${table} ${name}`)),
    )
  } catch {
    return new Set()
  }
}

/** The backend that this node uses; undefined without iptables. */
export async function backendHere(family: IpFamily): Promise<Backend | undefined> {
  const iptables = await Iptables.open({ family }).catch(() => undefined)
  return iptables?.capabilities.backend
}

/** Whether nf_tables has chains with such names. Only for where no program can look at them. */
export async function hasChains(
  family: IpFamily,
  isOurs: (table: string, chain: string) => boolean,
): Promise<boolean> {
  for (const name of (await chainNames(family)) ?? []) {
    const [table = '', chain = ''] = name.split(' ')
    if (isOurs(table, chain)) return true
  }
  return false
}

/**
 * Whether a backend of iptables may have rules in this network namespace. Most nodes use one, and to
 * find nothing in the other starts programs.
 */
export async function mayHaveRules(family: IpFamily, backend: Backend): Promise<boolean> {
  if (backend === 'legacy') return legacyTables(family)?.length !== 0
  const names = await chainNames(family)
  return !names || [...names].some((name) => tables.some((table) => name.startsWith(`${table} `)))
}
