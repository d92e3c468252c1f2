/** Removes rules that are replaced or no longer needed, of this process and of earlier ones. */
import {
  connectionState,
  parseRule,
  rule,
  targetOf,
  type Batch,
  type SavedTable,
} from '../../../kernel/iptables.js'
import { drainChain, filterChains, natChains } from '../names.js'
import { jumps } from '../render.js'
import { isSubChain } from './sub-chains.js'

export const ourChains: readonly (readonly [table: 'nat' | 'filter', chain: string])[] = [
  ...Object.values(natChains).map((chain) => ['nat', chain] as const),
  ...Object.values(filterChains).map((chain) => ['filter', chain] as const),
]

/** Removes sub-chains that no rule jumps to any more. */
export function removeSubChains(batch: Batch, { table, chains }: SavedTable): void {
  if (table !== 'nat' && table !== 'filter') return
  for (const chain of chains.keys()) {
    if (!isSubChain(table, chain)) continue
    batch.chain(table, chain)
    batch.deleteChain(table, chain)
  }
}

/** Adds a rule that no packet comes to. The kernel tracks connections as long as it exists. */
export function keepTracking(batch: Batch): void {
  const tracked = rule({ matches: [connectionState('DNAT')], jump: 'RETURN' })
  batch.chain('filter', drainChain).append('filter', drainChain, tracked)
}

/** The chain may also be of a process that was killed while it drained. */
export function removeDrainChain(batch: Batch, { table, chains }: SavedTable): void {
  if (table !== 'filter' || !chains.has(drainChain)) return
  batch.chain(table, drainChain).deleteChain(table, drainChain)
}

export function hasOurs({ table, chains }: SavedTable): boolean {
  return ourChains.some(([where, chain]) => where === table && chains.has(chain))
}

export function removeJumps(batch: Batch, { table, chains }: SavedTable): void {
  if (table !== 'nat' && table !== 'filter') return
  const targets = new Set(jumps.map(({ rule }) => rule.args.at(-1)))
  for (const { name, policy, rules } of chains.values()) {
    if (policy === '-') continue
    for (const text of rules) {
      if (targets.has(targetOf(text))) batch.deleteSaved(table, name, text)
    }
  }
}

/** The proxy ports that rules of ours lead UDP packets to. */
export function udpPortsOf({ table, chains }: SavedTable): readonly number[] {
  const ours = [...chains.values()].filter(
    ({ name }) =>
      ourChains.some((each) => each.join() === `${table},${name}`) || isSubChain(table, name),
  )
  return ours.flatMap(({ rules }) =>
    rules.flatMap((text) => {
      const { protocol, jumpArgs: [option = '', to = ''] = [] } = parseRule(text)
      const isOurs = protocol === 'udp' && /^--to-(ports|destination)$/.test(option)
      return isOurs ? [Number(to.slice(to.lastIndexOf(':') + 1))] : []
    }),
  )
}
