import { KernelError } from '../../errors.js'
import type { Command, NftSet } from '../../kernel/nftables/model.js'
import type { ListedElements, RulesetReader } from '../../kernel/nftables/reader.js'
import { sets } from './names.js'
import type { NftablesPlan } from './plan.js'

/**
 * Clients that the kernel remembers for session affinity, as elements for the same sets of a new
 * table, each with the time it has left. Endpoints that are gone take their clients along.
 */
export async function rememberedClients(
  plan: NftablesPlan,
  reader: RulesetReader,
): Promise<readonly Command[]> {
  const list = (set: NftSet) => listed(reader, plan, set)
  // Most often there is nothing to remember: at the first start no table, else no affinity.
  const affinity = [...plan.parts.values()].flatMap((part) =>
    part.sets.filter(({ timeoutSeconds }) => timeoutSeconds !== undefined),
  )
  if (affinity.length === 0 || !(await list(sets.clusterIps))) return []
  const commands: Command[] = []
  for (const set of affinity) {
    // The kernel refuses to remember longer than the set does.
    const longest = Math.floor(set.timeoutSeconds ?? 0) * 1000
    for (const { address, expiresMs } of (await list(set))?.remembered() ?? []) {
      const element = { set, key: [address], expiresMs: Math.min(expiresMs, longest) }
      if (expiresMs > 0) commands.push({ do: 'add-element', element })
    }
  }
  return commands
}

/** Undefined where there is no such set, or one that could not have been ours. */
async function listed(
  reader: RulesetReader,
  { table }: NftablesPlan,
  set: NftSet,
): Promise<ListedElements | undefined> {
  try {
    return await reader.elements(table, set)
  } catch (error) {
    if (error instanceof KernelError && error.kind === 'not-found') return undefined
    throw error
  }
}
