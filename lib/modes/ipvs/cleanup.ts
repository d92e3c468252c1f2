import { KernelError, messageOf } from '../../errors.js'
import { IpSetBatch, type IpSets } from '../../kernel/ipset.js'
import type { Ipvs } from '../../kernel/ipvs.js'
import type { Links } from '../../kernel/links.js'
import { ipFamilies, type Cidr, type IpFamily } from '../../state/ip.js'
import type { Log } from '../mode.js'
import { isOurs, readKernel } from './kernel-view.js'
import { deviceName, setNameOf, setNames } from './names.js'
import type { Rules } from './rules.js'

interface CleanupDeps {
  /** Undefined if the kernel has no IPVS. No module is loaded only to clean up (IP35). */
  readonly ipvs: Ipvs | undefined
  readonly links: Links
  readonly sets: IpSets
  /** One for each backend of iptables: the node may use another one now. */
  readonly rules: readonly Pick<Rules, 'remove'>[]
  readonly excluded: readonly Cidr[]
  readonly log: Log
}

/**
 * Removes what this mode, or upstream's, has left, and nothing else. Rules go before the sets that
 * they refer to. Unlike upstream, virtual servers of other programs stay (IP35), and the IPv6 sets
 * are removed, too.
 */
export async function cleanUp(deps: CleanupDeps): Promise<void> {
  const { ipvs, links, rules, log } = deps
  for (const family of ipFamilies) {
    if (ipvs) await tolerate(log, () => removeServers(deps, ipvs, family))
    for (const each of rules) await tolerate(log, () => each.remove(family))
  }
  const wasHere = links.remove(deviceName)
  if (wasHere) log.info({ device: deviceName }, 'removed')
  // The device says that there is something. An image has ipset, and its node may have none.
  if (wasHere) await removeSets(deps).catch(nothingSeen)
  else await tolerate(log, () => removeSets(deps))
}

/** Without the sets, most virtual servers cannot be told from those of other programs, either. */
function nothingSeen(error: unknown): never {
  const kind = error instanceof KernelError ? error.kind : 'failed'
  const left =
    'its ipsets and virtual servers may still be there; clean up again, with ipset installed'
  throw new KernelError(kind, `${messageOf(error)}: ${left}`, { cause: error })
}

async function removeServers(deps: CleanupDeps, ipvs: Ipvs, family: IpFamily): Promise<void> {
  const view = await readKernel(family, { ...deps, ipvs })
  const ours = [...view.servers.values()].filter((server) => isOurs(view, server, deps.excluded))
  await ipvs.change(ours.map((server) => ({ do: 'delete-server', server })))
}

/** A set that a rule of another program uses stays, and the others go. */
async function removeSets({ sets, log }: CleanupDeps): Promise<void> {
  let present = await sets.list()
  let names = ipFamilies.flatMap((family) => setNames.map((set) => setNameOf(family, set)))
  for (;;) {
    names = names.filter((name) => present.has(name))
    const batch = new IpSetBatch()
    for (const name of names) batch.destroy(name)
    try {
      await sets.restore(batch)
      return
    } catch (error) {
      if (!(error instanceof KernelError) || error.kind !== 'busy') throw error
    }
    present = await sets.list()
    // All before this one are gone.
    const [used, ...rest] = names.filter((name) => present.has(name))
    log.warn({ set: used }, 'an ipset stays, because a rule uses it')
    names = rest
  }
}

/**
 * Ignores errors other than missing rights: without a tool or a module there is nothing of ours.
 */
async function tolerate(log: Log, work: () => Promise<unknown>): Promise<void> {
  try {
    await work()
  } catch (error) {
    if (!(error instanceof KernelError) || error.kind === 'denied') throw error
    log.debug({ reason: messageOf(error) }, 'a part of the ipvs cleanup could not be done')
  }
}
