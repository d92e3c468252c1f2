/** Removes rules that are replaced or no longer needed, of this process and of earlier ones. */
import {
  Batch,
  connectionState,
  parseRule,
  rule,
  targetOf,
  type SavedTable,
} from '../../../kernel/iptables.js'
import { drainChain, filterChains, natChains } from '../names.js'
import { jumps } from '../render.js'
import { isSubChain } from './sub-chains.js'

export const ourChains: readonly (readonly [table: 'nat' | 'filter', chain: string])[] = [
  ...Object.values(natChains).map((chain) => ['nat', chain] as const),
  ...Object.values(filterChains).map((chain) => ['filter', chain] as const),
]

export function isOurs(table: string, chain: string): boolean {
  return ourChains.some((each) => each.join() === `${table},${chain}`) || isSubChain(table, chain)
}

/** The chain may also be of a process that was killed while it drained. */
export function isDrain(_table: string, chain: string): boolean {
  return chain === drainChain
}

/** Empties and removes chains that no other rule jumps to any more. */
export function removeChains(
  batch: Batch,
  tables: readonly SavedTable[],
  isUnwanted: (table: string, chain: string) => boolean,
): void {
  for (const { table, chains } of tables) {
    for (const chain of chains.keys()) {
      if (isUnwanted(table, chain)) batch.chain(table, chain).deleteChain(table, chain)
    }
  }
}

/** Adds a rule that no packet comes to. The kernel tracks connections as long as it exists. */
export function keepTracking(): Batch {
  const tracked = rule({ matches: [connectionState('DNAT')], jump: 'RETURN' })
  return new Batch().chain('filter', drainChain).append('filter', drainChain, tracked)
}

export function removeJumps(batch: Batch, tables: readonly SavedTable[]): void {
  const targets = new Set(jumps.map(({ rule }) => rule.args.at(-1)))
  for (const { table, chains } of tables) {
    for (const { name, policy, rules } of chains.values()) {
      if (policy === '-') continue
      for (const text of rules) {
        if (targets.has(targetOf(text))) batch.deleteSaved(table, name, text)
      }
    }
  }
}

/** The proxy ports that rules of ours lead UDP packets to. */
export function udpPortsOf({ table, chains }: SavedTable): readonly number[] {
  const ours = [...chains.values()].filter(({ name }) => isOurs(table, name))
  return ours.flatMap(({ rules }) =>
    rules.flatMap((text) => {
      const { protocol, jumpArgs: [option = '', to = ''] = [] } = parseRule(text)
      const isOurs = protocol === 'udp' && /^--to-(ports|destination)$/.test(option)
      return isOurs ? [Number(to.slice(to.lastIndexOf(':') + 1))] : []
    }),
  )
}
