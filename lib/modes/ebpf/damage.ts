import { counted } from '../../state/names.js'
import type { Slice } from '../../async.js'
import { frontendEntry, frontendKey, nodeAddressEntry, nodeAddressKey } from './frontend-layout.js'
import { memberKey, rememberedIn, serviceIdWord, targetId } from './layout.js'
import type { SocketPlan, TargetList } from './plan.js'
import { frontendText } from './render.js'
import { leadOf, type FamilyTables } from './tables.js'

/**
 * Says what somebody else changed in the maps of a family; undefined: nothing. Syncs go on
 * meanwhile, so each entry is compared with `plan`, which is what the maps hold at that moment. It
 * is undefined while nobody knows; the comparison after the next sync looks again.
 */
export async function damageTo(
  tables: FamilyTables,
  plan: () => SocketPlan | undefined,
  slice: Slice,
): Promise<string | undefined> {
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
    for (const list of plan()?.parts.get(key)?.targets ?? []) {
      // A sync may have changed the Service since its first list was looked at.
      if (plan()?.parts.get(key)?.targets.includes(list) !== true) break
      for (const isWell of holds(tables, list, plan))
        yield isWell ? undefined : `changed the endpoints of ${list.id} in an eBPF map`
    }
  }
  for (const id of first.frontends.keys()) {
    const frontend = plan()?.frontends.get(id)?.[0]
    if (!frontend) continue
    const slot = tables.placed(frontend.targets)?.slot
    const key = frontendKey(tables.family, frontend)
    const isWell = slot !== undefined && tables.holdsFrontend(key, frontendEntry(slot, frontend))
    yield isWell ? undefined : `changed ${frontendText(frontend)} in an eBPF map`
  }
  const now = plan()
  if (!now) return
  for (const address of now.nodeAddresses) {
    const key = nodeAddressKey(tables.family, address)
    const isWell = tables.holdsFrontend(key, nodeAddressEntry(address))
    if (!isWell) yield `changed node address ${address.address} in an eBPF map`
  }
  const more = tables.frontends.count() - now.frontends.size - now.nodeAddresses.length
  if (more !== 0) yield `added ${counted(more, 'entry', 'entries')} to eBPF map frontends`
  const extra = tables.members.count() - tables.mostMembers
  if (extra > 0) yield `added ${counted(extra, 'entry', 'entries')} to eBPF map members`
}

/** Entries that are compared without a question for the time. */
const step = 100

/** Whether a list is as it was written, step by step, until the list gets other places. */
function* holds(
  tables: FamilyTables,
  list: TargetList,
  plan: () => SocketPlan | undefined,
): Generator<boolean> {
  const { family, services, members } = tables
  const placed = tables.placed(list.id)
  if (placed?.list !== list) {
    yield false
    return
  }
  const { slot, first, count, tag } = placed
  const isHere = () => tables.placed(list.id) === placed
  const id = targetId(list.id)
  const isLead = services.load(slot, 0) === leadOf(list, placed)
  yield isLead && services.load(slot, 1) === serviceIdWord(id, list.affinitySeconds)
  for (let from = 0; from < count && isHere(); from += step) {
    yield list.endpoints
      .slice(from, Math.min(from + step, count))
      .every((endpoint, index) => tables.holdsBackend(first + from + index, endpoint, tag))
  }
  const remembered = [...rememberedIn(list)]
  for (let from = 0; from < remembered.length && isHere(); from += step) {
    yield remembered.slice(from, from + step).every(([endpoint, value]) => {
      const found = members.lookup(memberKey(family, id, endpoint))?.[0]
      return found === value || (found !== undefined && isShared(id, plan()))
    })
  }
}

/** Where two names have one number, the value may be that of the other list. */
function isShared(id: number, plan: SocketPlan | undefined): boolean {
  let lists = 0
  for (const { targets } of plan?.parts.values() ?? [])
    for (const list of targets) if (targetId(list.id) === id) lists++
  return lists > 1
}
