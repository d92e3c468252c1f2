import { KernelError } from '../../errors.js'
import { placeText } from '../../kernel/place.js'
import { nftablesDifferences, type ComparisonDeps } from './differences.js'
import type { NftablesPlan } from './plan.js'

export type VerifyDeps = Pick<ComparisonDeps, 'reader' | 'pause'>

/**
 * Compares the kernel with a plan and says the first thing that is not as it should be, or
 * undefined. What the kernel holds beyond the plan is no fault: nothing of ours leads there.
 */
export async function differenceFrom(
  plan: NftablesPlan,
  deps: VerifyDeps,
): Promise<string | undefined> {
  try {
    for await (const difference of nftablesDifferences(plan, deps)) {
      const { place, expected, found, isHarmless = false, isWhole = false } = difference
      const where = placeText(place)
      if (isHarmless) return undefined
      if (isWhole) return `${where} is missing`
      if (expected === undefined) return `${where} has more than it should: ${found ?? ''}`
      return `${where} lacks ${expected}`
    }
    return undefined
  } catch (error) {
    if (error instanceof KernelError && error.kind === 'not-found') return 'the table is incomplete'
    throw error
  }
}
