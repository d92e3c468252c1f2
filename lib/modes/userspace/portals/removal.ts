/** What is replaced or no longer needed, of this process and of earlier ones. */
import {
  Batch,
  connectionState,
  parseRule,
  rule,
  type SavedTable,
} from '../../../kernel/iptables.js'
import { drainChain, filterChains, natChains } from '../names.js'
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

/** Adds a rule that no packet comes to. The kernel tracks connections as long as it exists. */
export function keepTracking(): Batch {
  const tracked = rule({ matches: [connectionState('DNAT')], jump: 'RETURN' })
  return new Batch().chain('filter', drainChain).append('filter', drainChain, tracked)
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
