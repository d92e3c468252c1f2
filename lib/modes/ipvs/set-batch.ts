import { IpSetBatch, type SavedIpSet } from '../../kernel/ipset.js'
import type { Changes } from './changes.js'
import { setNameOf, setNames, setOf, type SetName } from './names.js'
import type { IpvsPlan } from './plan.js'
import type { PlannedMember } from './resource.js'

/**
 * Makes the one `ipset restore` of a sync. `present` are the sets that the kernel has; without it
 * all of them are known to be there.
 */
export function setBatch(
  { family }: IpvsPlan,
  changes: Changes,
  present?: ReadonlyMap<string, SavedIpSet>,
): IpSetBatch {
  const batch = new IpSetBatch()
  const replaced = new Set<SetName>()
  if (present) {
    // A run that was killed in the middle may have left it.
    if (present.has(temporarySet)) batch.destroy(temporarySet)
    for (const set of setNames) {
      const wanted = setOf(family, set)
      const saved = present.get(wanted.name)
      if (!saved) batch.create(wanted)
      else if (saved.type !== wanted.type || saved.options !== wanted.options) replaced.add(set)
    }
  }
  for (const set of replaced) replaceSet(batch, setOf(family, set), membersOf(changes, set))
  // Adds come first, so that a member that moves to another set is always in one.
  for (const { set, member } of changes.addMembers) {
    if (!replaced.has(set)) batch.add(setNameOf(family, set), member)
  }
  for (const { set, member } of changes.removeMembers) {
    if (!replaced.has(set)) batch.delete(setNameOf(family, set), member)
  }
  return batch
}

const temporarySet = 'KUBE-TMP'

/** Builds the set anew beside the old one and exchanges them, since rules may refer to it. */
function replaceSet(
  batch: IpSetBatch,
  set: ReturnType<typeof setOf>,
  members: readonly PlannedMember[],
): void {
  batch.create({ ...set, name: temporarySet })
  for (const { member } of members) batch.add(temporarySet, member)
  batch.swap(temporarySet, set.name).destroy(temporarySet)
}

/** With another shape every wanted member counts as missing, so the additions are all of them. */
function membersOf(changes: Changes, set: SetName): readonly PlannedMember[] {
  return changes.addMembers.filter((one) => one.set === set)
}
