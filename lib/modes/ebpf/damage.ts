import { Slice } from '../../async.js'
import { frontendKey, nodeAddressKey } from './frontend-keys.js'
import { hostOnly } from './layout.js'
import type { SocketPlan } from './plan.js'
import { frontendText } from './render.js'
import type { FamilyTables } from './tables.js'

/**
 * Says what somebody else changed in the maps of a family; undefined: nothing. Syncs go on
 * meanwhile, so each entry is compared with `plan`, which is what the maps hold at that moment. It
 * is undefined while nobody knows; the comparison after the next sync looks again.
 */
export async function damageTo(
  tables: FamilyTables,
  plan: () => SocketPlan | undefined,
): Promise<string | undefined> {
  const slice = new Slice()
  for (const damage of looks(tables, plan)) {
    if (damage !== undefined) return `somebody ${damage}`
    if (slice.isOver) await slice.rest()
    if (tables.isClosed) return undefined
  }
  return undefined
}

/** What is wrong with one entry after the other. */
function* looks(
  tables: FamilyTables,
  plan: () => SocketPlan | undefined,
): Generator<string | undefined> {
  const first = plan()
  if (!first) return
  for (const key of first.parts.keys()) {
    const targets = plan()?.parts.get(key)?.targets
    const changed = targets?.find((list) => !tables.holds(list))
    yield changed && `changed the endpoints of ${changed.id} in an eBPF map`
  }
  for (const id of first.frontends.keys()) {
    const frontend = plan()?.frontends.get(id)?.[0]
    if (!frontend) continue
    const found = tables.leadsTo(frontendKey(tables.family, frontend))
    const isWell = found === tables.slotOf(frontend.targets)
    yield isWell ? undefined : `changed ${frontendText(frontend)} in an eBPF map`
  }
  const now = plan()
  if (!now) return
  for (const address of now.nodeAddresses) {
    const found = tables.leadsTo(nodeAddressKey(tables.family, address))
    const isWell = found === (address.hostOnly ? hostOnly : 0)
    if (!isWell) yield `changed node address ${address.address} in an eBPF map`
  }
  const more = tables.frontends.count() - now.frontends.size - now.nodeAddresses.length
  if (more !== 0) yield `added ${more} entries to eBPF map frontends`
}
