import { Slice } from '../../async.js'
import { frontendKey, nodeAddressKey } from './frontend-keys.js'
import { hostOnly } from './layout.js'
import type { SocketPlan } from './plan.js'
import { frontendText } from './render.js'
import type { FamilyTables } from './tables.js'

/**
 * Says what somebody else changed in the maps of a family; undefined: nothing. Syncs go on
 * meanwhile, so each entry is compared with `plan`, which is what the maps hold at that moment.
 */
export async function damageTo(
  tables: FamilyTables,
  plan: () => SocketPlan | undefined,
): Promise<string | undefined> {
  const slice = new Slice()
  /** The plan after a rest; undefined if another comparison has to look instead. */
  const current = async () => {
    if (slice.isOver) await slice.rest()
    return tables.isClosed ? undefined : plan()
  }
  const first = await current()
  for (const key of first?.parts.keys() ?? []) {
    const now = await current()
    const changed = now?.parts.get(key)?.targets.find((list) => !tables.holds(list))
    if (changed) return `somebody changed the endpoints of ${changed.id} in an eBPF map`
  }
  for (const id of first?.frontends.keys() ?? []) {
    const now = await current()
    const frontend = now?.frontends.get(id)?.[0]
    if (!frontend) continue
    const slot = tables.placed(frontend.targets)?.slot
    if (tables.leadsTo(frontendKey(tables.family, frontend)) === slot) continue
    return `somebody changed ${frontendText(frontend)} in an eBPF map`
  }
  const now = await current()
  if (!now) return undefined
  for (const address of now.nodeAddresses) {
    const found = tables.leadsTo(nodeAddressKey(tables.family, address))
    if (found !== (address.hostOnly ? hostOnly : 0))
      return `somebody changed node address ${address.address} in an eBPF map`
  }
  const more = tables.frontends.count() - now.frontends.size - now.nodeAddresses.length
  return more === 0 ? undefined : `somebody added ${more} entries to eBPF map frontends`
}
