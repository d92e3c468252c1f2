import { Batch, isIptablesError, type Iptables } from '../../kernel/iptables.js'
import { accounts, chains, isOwnChain } from './names.js'
import { isEmptyMarkDrop, isOfInterest } from './full-sync.js'
import { kernelError } from '../../kernel/command.js'
import { legacyTables } from '../../kernel/iptables/flavour.js'
import { messageOf } from '../../errors.js'
import { hasChains, mayHaveRules } from '../chain-names.js'
import type { Backend, Family, Run, SavedTable } from '../../kernel/iptables.js'
import { chainsIn, removeChains } from '../remove-chains.js'
import { ipFamilies } from '../../state/ip.js'
import type { Log } from '../mode.js'
import { openPrograms, type OpenDeps } from './open.js'
import type { PacketAccounts } from '../../kernel/nfacct.js'

/**
 * The batch that removes everything that any version of this mode, or of kube-proxy's iptables
 * mode, puts into these tables: first the jumps, then the chains (IT50).
 */
export function cleanupBatch(saved: readonly SavedTable[]): Batch {
  const batch = new Batch()
  const ours = chainsIn(
    saved,
    (table, name, chains) => isOwnChain(name) || isEmptyMarkDrop(table, chains, name),
  )
  removeChains(batch, saved, ours)
  return batch
}

/** Cleans up both backends and both families, as far as they are installed. */
export async function cleanupAll(
  log: Log,
  { run, openAccounts }: Pick<OpenDeps, 'run' | 'openAccounts'>,
): Promise<void> {
  const failures: unknown[] = []
  for (const backend of ['nft', 'legacy'] as const) {
    for (const family of ipFamilies) {
      if (!run && !(await mayHaveRules(family, backend))) continue
      try {
        await cleanupOne({ family, backend, run }, log)
      } catch (error) {
        log.warn({ family, backend, error: messageOf(error) }, 'iptables rules not cleaned up')
        failures.push(error)
      }
    }
  }
  await removeAccounts(openAccounts, log)
  if (failures.length > 0) throw kernelError(failures[0], 'clean up iptables rules')
}

interface Place {
  readonly family: Family
  readonly backend: Backend
  readonly run: Run | undefined
}

async function cleanupOne(place: Place, log: Log): Promise<void> {
  let iptables: Iptables | undefined
  try {
    iptables = await openPrograms(place)
    // Only existing tables are read, because the legacy backend creates a table when asked for it.
    await iptables.restore(cleanupBatch(await iptables.save(undefined, isOfInterest)))
  } catch (error) {
    // A kernel that lacks the backend has no rules of it.
    const hasNone = !iptables && isIptablesError(error, 'unsupported')
    if (hasNone) return
    if (!isIptablesError(error, 'missing') || (await hasRules(place, log))) throw error
  }
}

/** Whether the kernel has rules of ours where the program is missing that could remove them. */
async function hasRules({ family, backend }: Place, log: Log): Promise<boolean> {
  if (backend === 'nft')
    return hasChains(family, (_, chain) => isOwnChain(chain) && !kubeletsToo.has(chain))
  const tables = legacyTables(family) ?? []
  // Without the program nobody can look into them, and most such tables have no rule of ours.
  if (tables.length > 0)
    log.info({ family, tables }, 'no iptables-legacy here, so nobody looked at its tables')
  return false
}

/** Kubelet before 1.27 makes them, too. With rules of ours there are others. */
const kubeletsToo: ReadonlySet<string> = new Set([chains.markMasquerade, chains.postrouting])

/** Removes the nfacct objects. The rules that count with them must be gone by then. */
async function removeAccounts(open: () => Promise<PacketAccounts>, log: Log): Promise<void> {
  try {
    const opened = await open()
    for (const name of Object.values(accounts)) opened.remove(name)
    opened.close()
  } catch (error) {
    log.debug({ reason: messageOf(error) }, 'no nfacct objects to remove')
  }
}
