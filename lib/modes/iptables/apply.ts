import { isIptablesError } from '../../kernel/iptables.js'
import { Known } from '../known.js'
import { Turns } from '../../async.js'
import { changeBatch } from './render.js'
import { findRefused, ownerOf } from './refused.js'
import { RuleCounter, type RuleCounts } from './count.js'
import type { ForeignCommits } from '../foreign-commits.js'
import { fullBatches, isOfInterest, readOwnTables } from './full-sync.js'
import { kernelError } from '../../kernel/command.js'
import type { Applied, Log } from '../mode.js'
import type { Content } from './render.js'
import type { FixedRules } from './fixed-rules.js'
import type { Batch, Iptables, IptablesError } from '../../kernel/iptables.js'
import type { IptablesPlan } from './plan.js'
import type { PersistentMap } from '../../state/persistent-map.js'
import type { Refusal } from './refused.js'
import type { ServiceRules } from './service-rules.js'

/**
 * The largest number of rules in one transaction of the nft backend. Its tool takes 1.4 kB of
 * memory for each rule, and writes 60,000 at once three times as slowly as six times 10,000. The
 * legacy backend writes the whole table after any change, so one transaction is best there.
 */
const rulesPerTransaction = { nft: 10_000, legacy: Infinity } as const

interface FamilyRulesOptions {
  readonly iptables: Iptables
  readonly log: Log
  /** Time after which refused Services are tried again. */
  readonly retryMs: () => number
  /** Counts our own transactions. */
  readonly foreign: ForeignCommits
  /** Makes what rules refer to outside of the tables, before all are written or refused ones found. */
  readonly prepare?: () => void
}

/**
 * The rules that the kernel has. They differ from the plan if it refuses the rules of a Service.
 */
interface InForce extends Content {
  readonly usesLocalnet: boolean
}

interface Written extends Omit<Applied, 'failed'> {
  readonly rules: RuleCounts
  readonly services: PersistentMap<ServiceRules>
  /** Whether the kernel refused a part before. */
  readonly refused: boolean
}

/** What an apply did, with the numbers by table that the metrics need. */
export interface AppliedRules extends Applied {
  /** How many rules were written. */
  readonly written: RuleCounts
  /** How many rules there are now. */
  readonly total: RuleCounts
  /** Whether the kernel refused something before Services were left out; `changes`: differences. */
  readonly refused: { readonly changes: boolean; readonly any: boolean }
}

/** Writes the plans of one family, and knows what the kernel then holds. */
export class FamilyRules {
  readonly #options: FamilyRulesOptions
  /** Refused Services by key. They are tried again when their rules change or after some time. */
  readonly #refused = new Map<string, Refusal>()
  #refusedAt = 0
  readonly #known = new Known<InForce>()
  readonly #counter = new RuleCounter()
  #fullSyncs = 0
  readonly #turns = new Turns()

  constructor(options: FamilyRulesOptions) {
    this.#options = options
  }

  get iptables(): Iptables {
    return this.#options.iptables
  }

  /** What the kernel holds while no sync runs; undefined if it is not known. */
  settled(): Promise<InForce | undefined> {
    return this.#known.settled()
  }

  forget(): void {
    this.#known.forget()
  }

  /** How often everything was written. */
  get fullSyncs(): number {
    return this.#fullSyncs
  }

  apply(plan: IptablesPlan): Promise<AppliedRules> {
    return this.#turns.take(() => this.#known.update((before) => this.#apply(plan, before)))
  }

  async #apply(plan: IptablesPlan, known: InForce | undefined) {
    const leftOut = this.#refused.size > 0
    const isTimeToRetry = !known || performance.now() - this.#refusedAt >= this.#options.retryMs()
    if (isTimeToRetry) this.#refused.clear()
    // Only a full sync writes the rule that protects 127.0.0.1.
    const isGuarded = known?.usesLocalnet === true || !plan.usesLocalnet
    try {
      const old = isGuarded ? known : undefined
      const changes = old && (await this.#applyChanges(plan, old, leftOut))
      const written = changes ?? (await this.#applyFully(plan, known))
      const { services, rules, refused, ...applied } = written
      const changesRefused = old !== undefined && !changes
      const now = { fixed: plan.fixed, services, usesLocalnet: plan.usesLocalnet }
      if (applied.full) this.#fullSyncs++
      const failed = [...this.#refused.values()].map(({ failure }) => failure)
      return {
        now,
        result: {
          ...{ ...applied, failed, written: rules, total: this.#counter.count(now) },
          refused: { changes: changesRefused, any: refused || changesRefused },
        },
      }
    } catch (error) {
      throw kernelError(error, `program iptables rules for ${plan.family}`)
    }
  }

  /** Undefined if the kernel refused a rule. Then some parts may be written and others not. */
  async #applyChanges(
    plan: IptablesPlan,
    known: Content,
    leftOut: boolean,
  ): Promise<Written | undefined> {
    const services = this.#acceptable(plan, known)
    try {
      const batch = changeBatch({ fixed: plan.fixed, services }, known)
      return { full: false, services, refused: false, ...(await this.#restore([batch])) }
    } catch (error) {
      if (!isRefusal(error)) throw error
      // What stays refused is said once, not at every retry.
      this.#options.log[leftOut ? 'debug' : 'warn'](
        { family: plan.family, line: error.lineText, reason: error.message },
        'a change of rules was refused; writing all of them',
      )
      // What is missing is no fault of a Service.
      this.#options.prepare?.()
      const { added, changed } = services.since(known.services)
      await this.#findRefused(
        plan.fixed,
        [...added, ...changed].map(([, service]) => service),
        error,
      )
      return undefined
    }
  }

  async #applyFully(plan: IptablesPlan, known: Content | undefined): Promise<Written> {
    this.#options.prepare?.()
    const { iptables, log } = this.#options
    const found = await readOwnTables(iptables, isOfInterest)
    const undeletable = new Set<string>()
    let searches = 0
    for (;;) {
      // After two searches a refused Service gets no rules: the kernel refuses even its old ones.
      const services = this.#acceptable(plan, searches < 2 ? known : undefined)
      const { fixed, usesLocalnet } = plan
      const batches = fullBatches({
        ...{ fixed, services, usesLocalnet, found, undeletable },
        rulesPerTransaction: rulesPerTransaction[iptables.capabilities.backend],
      })
      try {
        const refused = searches > 0
        return { full: true, services, refused, ...(await this.#restore(batches)) }
      } catch (error) {
        const busy = busyChain(error)
        if (busy !== undefined && !undeletable.has(busy)) {
          log.warn({ chain: busy }, 'a stale chain stays: other rules jump to it')
          undeletable.add(busy)
          continue
        }
        if (!isRefusal(error) || ++searches > 2) throw error
        // If the kernel refuses no single Service, the error concerns all of them.
        if (!(await this.#findRefused(fixed, [...services.values()], error))) throw error
      }
    }
  }

  /** A Service whose new rules are refused keeps its old rules. A new Service gets none. */
  #acceptable(plan: IptablesPlan, known: Content | undefined): PersistentMap<ServiceRules> {
    for (const [key, { rules }] of this.#refused) {
      if (plan.services.get(key) !== rules) this.#refused.delete(key)
    }
    return plan.services.update(
      [...this.#refused.keys()].map((key) => [key, known?.services.get(key)]),
    )
  }

  /** Returns whether single Services are refused. They are left out from now on. */
  async #findRefused(
    fixed: FixedRules,
    services: readonly ServiceRules[],
    error: unknown,
  ): Promise<boolean> {
    const failed = await findRefused(services, {
      fixed,
      attempt: async (batch) => {
        await this.#restore([batch])
      },
      firstSuspect: ownerOf(services, error),
    })
    this.#refusedAt = performance.now()
    // Who gets the result names the Services once, and not at every retry.
    for (const refusal of failed) this.#refused.set(refusal.failure.key, refusal)
    return failed.length > 0
  }

  async #restore(batches: readonly Batch[]): Promise<Pick<Written, 'bytes' | 'objects' | 'rules'>> {
    const text = batches.map(String).join('')
    const transactions = sum(batches, (batch) => batch.transactions)
    const { foreign, iptables } = this.#options
    await foreign.around(transactions, () => iptables.restore(text))
    const rules = {
      nat: sum(batches, (batch) => batch.rulesWritten('nat')),
      filter: sum(batches, (batch) => batch.rulesWritten('filter')),
    }
    return { bytes: text.length, objects: sum(batches, ({ size }) => size), rules }
  }
}

function sum<T>(items: readonly T[], of: (item: T) => number): number {
  return items.reduce((total, item) => total + of(item), 0)
}

/** Whether an error is about a rule, and not about the whole batch. */
function isRefusal(error: unknown): error is IptablesError {
  return (
    isIptablesError(error) &&
    error.line !== undefined &&
    ['failed', 'invalid', 'unsupported', 'not-found'].includes(error.kind)
  )
}

/** The chain that could not be deleted, because a rule jumps to it. */
function busyChain(error: unknown): string | undefined {
  if (!isIptablesError(error)) return undefined
  return /^-X (\S+)$/.exec(error.lineText ?? '')?.[1]
}
