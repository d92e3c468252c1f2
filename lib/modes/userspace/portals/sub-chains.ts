import { bitsOf, formatIp, parseIp, type IpFamily } from '../../../state/ip.js'
import { rule, type Rule, type SavedChain, type SavedTable } from '../../../kernel/iptables.js'
import { filterChains, natChains } from '../names.js'

/** A rule and its chain. */
export interface PlacedRule {
  readonly table: 'nat' | 'filter'
  readonly chain: string
  readonly rule: Rule
  /** The sub-chain for the rule once its chain is too large. */
  readonly subChain?: number | undefined
}

/*
 * With few Services our chains look like the original's, one rule after the other. From
 * `subChainsFrom` rules on, the large chains only jump to sub-chains: by the last bits of the
 * address, or by the port. iptables-nft reads and compares a whole chain to delete one rule
 * of it, and the kernel walks a whole chain for every new connection. With sub-chains both see a
 * 64th of the rules.
 */

export const subChainsFrom = 1000

const subChains = 64
const addressBits = subChains - 1
const portsPerSubChain = 65_536 / subChains

const splitInNat: readonly string[] = [natChains.portalsContainer, natChains.portalsHost]

/** The sub-chain of a rule, by its address or port. Undefined for chains that have none. */
export function subChainOf(
  chain: string,
  destination: string | undefined,
  port: string,
): number | undefined {
  if (splitInNat.includes(chain)) {
    const ip = destination === undefined ? undefined : parseIp(destination)
    return ip && Number(ip.value & BigInt(addressBits))
  }
  const number = Number(port)
  const isPort = chain === filterChains.direct && number < 65_536
  return isPort ? Math.floor(number / portsPerSubChain) : undefined
}

export function subChainName(chain: string, subChain: number): string {
  return `${chain}-${subChain.toString(16).toUpperCase().padStart(2, '0')}`
}

/** Whether a chain found in the kernel is a sub-chain, of this run or an earlier one. */
export function isSubChain(table: string, chain: string): boolean {
  const [, parent] = /^(.*)-[0-9A-F]{2}$/.exec(chain) ?? []
  const parents = table === 'filter' ? Object.values<string>(filterChains) : splitInNat
  return parent !== undefined && parents.includes(parent)
}

/**
 * The rules of the large chains once there are sub-chains. `sparseMasks`: iptables takes a mask that
 * begins with a zero byte.
 */
export function jumpsToSubChains(family: IpFamily, sparseMasks: boolean): readonly PlacedRule[] {
  const jumps: PlacedRule[] = []
  for (let subChain = 0; subChain < subChains; subChain++) {
    for (const destination of addressesOf(subChain, family, sparseMasks)) {
      for (const chain of splitInNat) {
        const jump = subChainName(chain, subChain)
        jumps.push({ table: 'nat', chain, rule: rule({ destination, jump }) })
      }
    }
    const from = subChain * portsPerSubChain
    const args = ['--dport', `${from}:${from + portsPerSubChain - 1}`]
    for (const protocol of ['tcp', 'udp']) {
      const jump = subChainName(filterChains.direct, subChain)
      const matches = [{ name: protocol, args }]
      const placed = rule({ protocol, matches, jump })
      jumps.push({ table: 'filter', chain: filterChains.direct, rule: placed })
    }
  }
  return jumps
}

/**
 * The addresses of a sub-chain, with their mask. Where the mask must not begin with a zero byte, it
 * has the first bit too, and both values of that bit are needed.
 */
function addressesOf(subChain: number, family: IpFamily, sparseMasks: boolean): readonly string[] {
  const firsts = sparseMasks ? [0] : [0, 1]
  const maskFirst = sparseMasks ? 0 : 1
  const address = (first: number, last: number) =>
    formatIp(family, (BigInt(first) << BigInt(bitsOf(family) - 1)) | BigInt(last))
  return firsts.map((first) => `${address(first, subChain)}/${address(maskFirst, addressBits)}`)
}

/** A listing as it would be without sub-chains, to compare rules wherever they are. */
export function withoutSubChains(tables: readonly SavedTable[]): readonly SavedTable[] {
  return tables.map((saved) => {
    const { table, chains } = saved
    const merged = new Map<string, SavedChain>()
    for (const [name, chain] of chains) {
      if (isSubChain(table, name)) continue
      const rules = chain.rules.filter(
        (text) => !isSubChain(table, text.slice(text.lastIndexOf(' ') + 1)),
      )
      merged.set(name, { ...chain, rules })
    }
    for (const [name, chain] of chains) {
      const parent = name.slice(0, -'-00'.length)
      const into = isSubChain(table, name) ? merged.get(parent) : undefined
      if (into) merged.set(parent, { ...into, rules: [...into.rules, ...chain.rules] })
    }
    return { ...saved, chains: merged }
  })
}
