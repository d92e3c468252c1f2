import type { Command } from '../../kernel/nftables/model.js'
import type { ClientReader } from '../../kernel/nftables/reader.js'
import type { NftablesPlan } from './plan.js'

/**
 * Clients that the kernel remembers for session affinity, as elements for the same sets of a new
 * table, each with the time it has left. Endpoints that are gone take their clients along.
 */
export async function rememberedClients(
  plan: NftablesPlan,
  reader: ClientReader,
): Promise<readonly Command[]> {
  const affinity = [...plan.parts.values()].flatMap((part) =>
    part.sets.filter(({ timeoutSeconds }) => timeoutSeconds !== undefined),
  )
  if (affinity.length === 0) return []
  const remembered = await reader.remembered(plan.table, affinity)
  const commands: Command[] = []
  for (const set of affinity) {
    // The kernel refuses to remember longer than the set does.
    const longest = Math.floor(set.timeoutSeconds ?? 0) * 1000
    for (const { address, expiresMs } of remembered.get(set.name) ?? []) {
      const element = { set, key: [address], expiresMs: Math.min(expiresMs, longest) }
      if (expiresMs > 0) commands.push({ do: 'add-element', element })
    }
  }
  return commands
}
