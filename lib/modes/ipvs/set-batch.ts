import { IpSetBatch, isPlainMember, type IpSet, type SavedIpSet } from '../../kernel/ipset.js'
import type { MemberChange } from '../../kernel/ipset-members.js'
import type { IpFamily } from '../../state/ip.js'
import type { Changes } from './changes.js'
import { setNameOf, setNames, setOf, type SetName } from './names.js'
import type { IpvsPlan } from './plan.js'
import type { PlannedMember } from './resource.js'

/**
 * Makes one `ipset restore` of the sets and their new members. `present` are the sets that the
 * kernel has. Without it, the kernel is known to have all sets.
 */
export function setBatch(
  plan: IpvsPlan,
  changes: Changes,
  present?: ReadonlyMap<string, SavedIpSet>,
): IpSetBatch {
  const { family } = plan
  const batch = new IpSetBatch()
  // By the name in the kernel.
  const replaced = new Map<string, SetName>()
  if (present) {
    // A run that was killed in the middle may have left this set.
    if (present.has(temporarySet)) batch.destroy(temporarySet)
    for (const set of setNames) {
      const wanted = setOf(family, set)
      const saved = present.get(wanted.name)
      if (!saved) batch.create(wanted)
      else if (fittingSet(family, present, set)) continue
      else if (isExchangeable(saved, wanted)) replaced.set(wanted.name, set)
      else batch.destroy(wanted.name).create(wanted)
    }
  }
  // What only another program writes goes first: it may stand in the place of a member of ours.
  for (const { set, member } of changes.removeMembers) {
    if (!isPlainMember(member)) batch.delete(setNameOf(family, set), member)
  }
  for (const set of replaced.values()) {
    // Of such a set, every member counts as added.
    const members = changes.addMembers.filter((one) => one.set === set)
    replaceSet(batch, setOf(family, set), members)
  }
  for (const { set, member } of memberChanges(family, 'add', changes.addMembers)) {
    if (!replaced.has(set)) batch.add(set, member)
  }
  return batch
}

/** A set of another shape, such as upstream's with its lower limit, is replaced as a whole. */
export function fittingSet(
  family: IpFamily,
  present: ReadonlyMap<string, SavedIpSet>,
  set: SetName,
): SavedIpSet | undefined {
  const wanted = setOf(family, set)
  const saved = present.get(wanted.name)
  return saved?.type === wanted.type && saved.options === wanted.options ? saved : undefined
}

/** The kernel exchanges only sets of one type and family. No rule of ours can use any other. */
function isExchangeable(saved: IpSet, wanted: IpSet): boolean {
  const familyOf = ({ options }: IpSet) => /family (\S+)/.exec(options)?.[1]
  return saved.type === wanted.type && familyOf(saved) === familyOf(wanted)
}

/** Removes the members that nothing needs any more. */
export function removalBatch({ family }: IpvsPlan, { removeMembers }: Changes): IpSetBatch {
  const batch = new IpSetBatch()
  for (const { set, member } of memberChanges(family, 'delete', removeMembers)) {
    batch.delete(set, member)
  }
  return batch
}

export function memberChanges(
  family: IpFamily,
  verb: MemberChange['do'],
  members: readonly PlannedMember[],
): readonly MemberChange[] {
  return members.map(({ set, member }) => ({ do: verb, set: setNameOf(family, set), member }))
}

const temporarySet = 'KUBE-TMP'

/**
 * Builds a new set and exchanges it with the old one, which cannot be deleted while rules use it.
 */
function replaceSet(batch: IpSetBatch, set: IpSet, members: readonly PlannedMember[]): void {
  batch.create({ ...set, name: temporarySet })
  for (const { member } of members) batch.add(temporarySet, member)
  batch.swap(temporarySet, set.name).destroy(temporarySet)
}
