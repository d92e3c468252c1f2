import { parseIp, type IpFamily } from '../../../state/ip.js'
import { rule, type Rule, type SavedChain, type SavedTable } from '../../../kernel/iptables.js'
import { filterChains, natChains } from '../names.js'

/** Where a rule goes, and its text. */
export interface PlacedRule {
  readonly table: 'nat' | 'filter'
  readonly chain: string
  readonly rule: Rule
  /** Where it goes once its chain is too large. */
  readonly branch?: number | undefined
}

/*
 * With few Services our chains look as the original's did, one rule after the other. From
 * `branchFrom` rules on, the large chains only lead to branches: by the last bits of the address,
 * or by the proxy port. iptables-nft reads and compares a whole chain to delete one rule of it,
 * and the kernel walks one for every new connection; both now meet a 64th of the rules.
 */

export const branchFrom = 1000

const branches = 64
const addressBits = branches - 1
const portsPerBranch = 65_536 / branches

const branchedNat: readonly string[] = [natChains.portalsContainer, natChains.portalsHost]
const branchedFilter: readonly string[] = [filterChains.direct]

/** The branch of a rule for this address, or for this proxy port; undefined where there is none. */
export function branchOf(
  chain: string,
  destination: string | undefined,
  port: string,
): number | undefined {
  if (branchedNat.includes(chain)) {
    const ip = destination === undefined ? undefined : parseIp(destination)
    return ip && Number(ip.value & BigInt(addressBits))
  }
  const number = Number(port)
  const isPort = branchedFilter.includes(chain) && number < 65_536
  return isPort ? Math.floor(number / portsPerBranch) : undefined
}

export function branchName(chain: string, branch: number): string {
  return `${chain}-${branch.toString(16).toUpperCase().padStart(2, '0')}`
}

/** Whether a chain found in the kernel is a branch, of this run or an earlier one. */
export function isBranch(table: string, chain: string): boolean {
  const [, trunk] = /^(.*)-[0-9A-F]{2}$/.exec(chain) ?? []
  const trunks = table === 'nat' ? branchedNat : table === 'filter' ? branchedFilter : []
  return trunk !== undefined && trunks.includes(trunk)
}

/** What stands in the large chains then: the ways to their branches. */
export function branchings(family: IpFamily, guardsEachPort: boolean): readonly PlacedRule[] {
  const ways: PlacedRule[] = []
  const lead = (table: 'nat' | 'filter', chain: string, branch: number, ruleTo: RuleTo) => {
    ways.push({ table, chain, rule: ruleTo(branchName(chain, branch)) })
  }
  for (let branch = 0; branch < branches; branch++) {
    const destination =
      family === 'IPv4' ? `0.0.0.${branch}/0.0.0.${addressBits}` : maskedIpv6(branch)
    for (const chain of branchedNat)
      lead('nat', chain, branch, (jump) => rule({ destination, jump }))
    if (!guardsEachPort) continue
    const from = branch * portsPerBranch
    const args = ['--dport', `${from}:${from + portsPerBranch - 1}`]
    for (const protocol of ['tcp', 'udp']) {
      const matches = [{ name: protocol, args }]
      for (const chain of branchedFilter) {
        lead('filter', chain, branch, (jump) => rule({ protocol, matches, jump }))
      }
    }
  }
  return ways
}

/** A listing as it would be without branches: for whoever compares rules, wherever they stand. */
export function withoutBranches(tables: readonly SavedTable[]): readonly SavedTable[] {
  return tables.map((saved) => {
    const { table, chains } = saved
    const merged = new Map<string, SavedChain>()
    for (const [name, chain] of chains) {
      if (isBranch(table, name)) continue
      const rules = chain.rules.filter(
        (text) => !isBranch(table, text.slice(text.lastIndexOf(' ') + 1)),
      )
      merged.set(name, { ...chain, rules })
    }
    for (const [name, chain] of chains) {
      const trunk = name.slice(0, -'-00'.length)
      const into = isBranch(table, name) ? merged.get(trunk) : undefined
      if (into) merged.set(trunk, { ...into, rules: [...into.rules, ...chain.rules] })
    }
    return { ...saved, chains: merged }
  })
}

type RuleTo = (jump: string) => Rule

function maskedIpv6(branch: number): string {
  return `::${branch.toString(16)}/::${addressBits.toString(16)}`
}
