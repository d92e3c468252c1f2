import { Iptables, type Backend, type Run } from '../kernel/iptables.js'
import { mayHaveRules } from './chain-names.js'
import type { IpFamily } from '../state/ip.js'
import type { Log } from './mode.js'

interface Place {
  readonly family: IpFamily
  readonly backend: Backend
  /** A chain that the mode always has. */
  readonly chain: string
}

/**
 * Warns of Service rules that an earlier run left in the other backend of iptables. The kernel uses
 * the rules of both backends, so old rules would send packets to endpoints or listeners that no
 * longer exist.
 */
export async function warnOfOtherBackend(
  { family, backend, chain }: Place,
  { log, run }: { readonly log: Log; readonly run?: Run | undefined },
): Promise<void> {
  const other = backend === 'nft' ? 'legacy' : 'nft'
  try {
    if (!run && !(await mayHaveRules(family, other))) return
    const iptables = await Iptables.open({ family, backend: other, run })
    // The names of the existing tables are enough; asking for one by name could create it.
    const saved = await iptables.save(undefined, () => false)
    if (!saved.some(({ chains }) => chains.has(chain))) return
    const fields = { family, using: backend, alsoIn: other }
    log.warn(
      fields,
      'the other iptables backend has Service rules, too: remove them with `kube-proxy cleanup`',
    )
  } catch {
    // A backend that is not installed, or not in this kernel, has no rules.
  }
}
