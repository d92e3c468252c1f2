import { Batch, isIptablesError } from '../../kernel/iptables.js'
import { messageOf } from '../../errors.js'
import { chains as names } from './names.js'
import { writeChain } from './render.js'
import type { FixedRules } from './fixed-rules.js'
import type { ServiceFailure } from '../mode.js'
import type { ServiceRules } from './service-rules.js'

/** A Service whose rules the kernel refuses. */
export interface Refusal {
  readonly rules: ServiceRules
  readonly failure: ServiceFailure
}

interface Search {
  /** Chains to which the rules of Services jump. */
  readonly fixed: FixedRules
  /** Gives a batch to the kernel. Throws if the kernel refuses it. */
  attempt(batch: Batch): Promise<void>
  /** The Service to which the first error points; undefined if the error names no line. */
  readonly firstSuspect: ServiceRules | undefined
}

/** After this many attempts the fault is probably in the node and not in a Service. */
const mostAttempts = 150

/**
 * Finds the Services whose rules the kernel refuses, so that the others can be programmed. The nft
 * backend names the refused line. The legacy backend does not, so the search tries halves. An
 * attempt changes nothing for packets: it writes chains to which nothing jumps, or which are about
 * to get the same content anyway.
 */
export async function findRefused(
  services: readonly ServiceRules[],
  search: Search,
): Promise<Refusal[]> {
  const failed: Refusal[] = []
  let attempts = 0
  const refusalOf = async (group: readonly ServiceRules[]): Promise<unknown> => {
    if (++attempts > mostAttempts) {
      throw new Error(`more than ${failed.length} Services are refused, such as ${list(failed)}`)
    }
    try {
      await search.attempt(trialBatch(search.fixed, group))
      return undefined
    } catch (error) {
      if (!isIptablesError(error) || error.line === undefined) throw error
      return error
    }
  }
  const examine = async (group: readonly ServiceRules[]): Promise<void> => {
    let left = group
    for (;;) {
      const error = left.length === 0 ? undefined : await refusalOf(left)
      if (error === undefined) return
      const [only] = left
      const culprit = left.length === 1 ? only : ownerOf(left, error)
      if (!culprit) {
        const middle = left.length >> 1
        await examine(left.slice(0, middle))
        return examine(left.slice(middle))
      }
      const reason = reasonOf(error, culprit)
      const failure = { key: culprit.key, reason, event: 'RulesRefused' }
      failed.push({ rules: culprit, failure })
      left = left.filter((service) => service !== culprit)
    }
  }
  const { firstSuspect } = search
  try {
    if (firstSuspect) await examine([firstSuspect])
    await examine(services.filter((service) => service !== firstSuspect))
  } finally {
    await search.attempt(afterTrials())
  }
  return failed
}

/** The Service whose line an error names. */
export function ownerOf(
  services: readonly ServiceRules[],
  error: unknown,
): ServiceRules | undefined {
  const text = isIptablesError(error) ? error.lineText : undefined
  const found = /^-[AI] (\S+) (.*)$/.exec(text ?? '')
  const [, chain, rule] = found ?? []
  if (chain === undefined || rule === undefined) return undefined
  return services.find(
    (service) =>
      service.chains.some((one) => one.chain === chain) ||
      service.dispatch.some((one) => one.rule.text === rule),
  )
}

/** What was said about a rule on trial, as if about the chain that it is for. */
function reasonOf(error: unknown, { dispatch }: ServiceRules): string {
  const text = isIptablesError(error) ? error.lineText : undefined
  const meant = dispatch.find(({ rule }) => text === `-A ${names.trial} ${rule.text}`)
  return meant ? messageOf(error).replaceAll(names.trial, meant.chain) : messageOf(error)
}

/** All rules of these Services. Rules for shared chains go into a chain to which nothing jumps. */
function trialBatch(fixed: FixedRules, services: readonly ServiceRules[]): Batch {
  const batch = new Batch()
  for (const table of trialTables) batch.chain(table, names.trial)
  for (const one of fixed.chains) writeChain(batch, one)
  for (const { chains, dispatch } of services) {
    for (const one of chains) writeChain(batch, one)
    for (const { table, rule } of dispatch) batch.append(table, names.trial, rule)
  }
  return batch
}

/** The kernel never sees a rule that goes with the batch that brings it. So this is a batch of its own. */
function afterTrials(): Batch {
  const batch = new Batch()
  for (const table of trialTables) {
    batch.chain(table, names.trial).deleteChain(table, names.trial)
  }
  return batch
}

const trialTables = ['nat', 'filter'] as const

function list(failed: readonly Refusal[]): string {
  return failed
    .slice(0, 3)
    .map(({ rules }) => rules.key)
    .join(', ')
}
