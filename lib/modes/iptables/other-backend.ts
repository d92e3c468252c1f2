import { chains } from './names.js'
import { Iptables, type Backend, type Family, type Run } from '../../kernel/iptables.js'
import type { Log } from '../mode.js'

/**
 * Both backends of iptables are in force at the same time. Service rules that an earlier run left
 * in the other one would send packets to endpoints that are no more, so that is said at the start.
 */
export async function warnOfOtherBackend(
  family: Family,
  backend: Backend,
  { log, run }: { readonly log: Log; readonly run?: Run | undefined },
): Promise<void> {
  const other = backend === 'nft' ? 'legacy' : 'nft'
  try {
    const iptables = await Iptables.open({ family, backend: other, ...(run ? { run } : {}) })
    // The names of the tables that exist are enough; asking for one by name could make it.
    const saved = await iptables.save(undefined, () => false)
    if (!saved.some(({ chains: present }) => present.has(chains.services))) return
    const fields = { family, using: backend, alsoIn: other }
    log.warn(
      fields,
      'Service rules also in the other iptables backend: remove them by `kube-proxy cleanup`',
    )
  } catch {
    // Not installed, or not in this kernel: then there is nothing in it.
  }
}
