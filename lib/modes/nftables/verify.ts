import { KernelError } from '../../errors.js'
import type { NftSet } from '../../kernel/nftables/model.js'
import type { RulesetReader } from '../../kernel/nftables/reader.js'
import { endpointElements, winnerOf } from './claims.js'
import { endpointMaps, sets } from './names.js'
import type { NftablesPlan } from './plan.js'

/** Comparing is fast, but a whole cluster of it at once would be felt: turns in between. */
const stepSize = 200

export interface VerifyDeps {
  readonly reader: RulesetReader
  /** Lets others work. */
  readonly pause: () => Promise<void>
}

/**
 * Compares the kernel with a plan and says the first thing that is not as it should be, or
 * undefined. What the kernel holds beyond the plan is no fault: nothing of ours leads there.
 */
export async function differenceFrom(
  plan: NftablesPlan,
  deps: VerifyDeps,
): Promise<string | undefined> {
  try {
    return (await chainDifference(plan, deps)) ?? (await elementDifference(plan, deps))
  } catch (error) {
    if (error instanceof KernelError && error.kind === 'not-found') return 'the table is incomplete'
    throw error
  }
}

async function chainDifference(
  plan: NftablesPlan,
  { reader, pause }: VerifyDeps,
): Promise<string | undefined> {
  const listed = await reader.chains(plan.table)
  let compared = 0
  for (const part of plan.parts.values()) {
    for (const { name, rules } of part.chains) {
      const there = listed.get(name)
      if (!there) return `chain ${name} is missing`
      if (there.length !== rules.length) return `chain ${name} has other rules`
      if (!rules.every((rule, index) => there[index]?.isLike(rule))) {
        return `chain ${name} has a changed rule`
      }
      if (++compared % stepSize === 0) await pause()
    }
  }
  return undefined
}

async function elementDifference(
  plan: NftablesPlan,
  { reader, pause }: VerifyDeps,
): Promise<string | undefined> {
  const present = plan.parts.get('')?.sets ?? []
  const counts = new Map<NftSet, number>()
  const listed = new Map<string, Awaited<ReturnType<RulesetReader['elements']>>>()
  for (const set of present) listed.set(set.name, await reader.elements(plan.table, set))
  let compared = 0
  for (const claims of plan.claims.values()) {
    const winner = winnerOf(claims)
    if (!winner) continue
    for (const element of [winner, ...endpointElements(winner)]) {
      counts.set(element.set, (counts.get(element.set) ?? 0) + 1)
      if (!listed.get(element.set.name)?.has(element)) {
        return `element ${element.key.join(' . ')} of ${element.set.name} is missing or changed`
      }
    }
    if (++compared % (stepSize * 10) === 0) await pause()
  }
  // These decide about packets by being looked up: one element too many is a fault, too.
  for (const set of [...Object.values(sets), ...Object.values(endpointMaps)]) {
    const there = listed.get(set.name)
    if (there && there.size !== (counts.get(set) ?? 0)) return `${set.name} has other elements`
  }
  return undefined
}
