import { IpSetBatch, type SavedIpSet } from '../../kernel/ipset.js'
import type { Changes } from './changes.js'
import { setNameOf, setNames, setOf, type SetName } from './names.js'
import type { IpvsPlan } from './plan.js'
import type { PlannedMember } from './resource.js'

/**
 * Makes the one `ipset restore` of a sync. `present` are the sets that the kernel has. Without it,
 * the kernel is known to have all sets.
 */
export function setBatch(
  { family }: IpvsPlan,
  changes: Changes,
  present?: ReadonlyMap<string, SavedIpSet>,
): IpSetBatch {
  const batch = new IpSetBatch()
  const replaced = new Set<SetName>()
  if (present) {
    // A run that was killed in the middle may have left this set.
    if (present.has(temporarySet)) batch.destroy(temporarySet)
    for (const set of setNames) {
      const wanted = setOf(family, set)
      const saved = present.get(wanted.name)
      if (!saved) batch.create(wanted)
      else if (saved.type !== wanted.type || saved.options !== wanted.options) replaced.add(set)
    }
  }
  for (const set of replaced) replaceSet(batch, setOf(family, set), membersOf(changes, set))
  // Members are added before others are removed, so that one that moves is always in a set.
  for (const { set, member } of changes.addMembers) {
    if (!replaced.has(set)) batch.add(setNameOf(family, set), member)
  }
  for (const { set, member } of changes.removeMembers) {
    if (!replaced.has(set)) batch.delete(setNameOf(family, set), member)
  }
  return batch
}

const temporarySet = 'KUBE-TMP'

/**
 * Builds a new set and exchanges it with the old one, which cannot be deleted while rules use it.
 */
function replaceSet(
  batch: IpSetBatch,
  set: ReturnType<typeof setOf>,
  members: readonly PlannedMember[],
): void {
  batch.create({ ...set, name: temporarySet })
  for (const { member } of members) batch.add(temporarySet, member)
  batch.swap(temporarySet, set.name).destroy(temporarySet)
}

/** All members of a set that is replaced: of such a set, every member counts as added. */
function membersOf(changes: Changes, set: SetName): readonly PlannedMember[] {
  return changes.addMembers.filter((one) => one.set === set)
}
