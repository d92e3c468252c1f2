import type { Command, Transaction } from '../../kernel/nftables/model.js'
import type { ChainsAndSets } from '../../kernel/nftables/reader.js'
import { transactionLines, transactionText, type CommandLine } from '../../kernel/nftables/text.js'
import { between, creation } from './changes.js'
import { nftablesPlanner, onlyOf, type NftablesPlan, type PlanSettings } from './plan.js'
import { nftablesSettings } from './settings.js'
import type { Config } from '../../config/config.js'
import type { PlanReader } from '../mode.js'

/** The whole plan as input of `nft -f`, sorted by kind and name. */
export function renderPlan(plan: NftablesPlan): string {
  return transactionText(sortedCreation(plan))
}

/** The same line by line, with the commands of each. */
function planLines(plan: NftablesPlan): readonly CommandLine[] {
  return transactionLines(sortedCreation(plan))
}

function sortedCreation(plan: NftablesPlan): Transaction {
  const commands = [...creation(plan)].sort(byKindAndName)
  return { table: plan.table, commands: [{ do: 'add-table' }, ...commands] }
}

/** What `apply` sends to get from `previous` to `plan`. */
export function renderChanges(plan: NftablesPlan, previous: NftablesPlan | undefined): string {
  const { table } = plan
  return transactionText(
    previous ? { table, commands: between(plan, previous).commands } : recreation(plan),
  )
}

/**
 * Makes the table anew in one step, whatever was in it (NF04). A packet meets the whole old ruleset
 * or the whole new one. Established connections go on, because they are in conntrack.
 */
export function recreation(plan: NftablesPlan): Transaction {
  return {
    table: plan.table,
    commands: [{ do: 'add-table' }, { do: 'delete-table' }, { do: 'add-table' }, ...creation(plan)],
  }
}

/**
 * The same, in a table that has the chains and sets of an earlier plan. What has the same name stays
 * and gets a new content. A packet that the kernel looks up at this very moment has the old rules and
 * the new elements, and meets no set and no chain that is gone or still empty.
 */
export function renewal(plan: NftablesPlan, { chains, sets }: ChainsAndSets): Transaction {
  return {
    table: plan.table,
    commands: [
      { do: 'add-table' },
      ...chains.map((chain): Command => ({ do: 'flush-chain', chain })),
      ...sets.map((set): Command => ({ do: 'flush-set', set })),
      ...creation(plan),
    ],
  }
}

const kinds: readonly Command['do'][] = ['add-set', 'add-chain', 'add-rule', 'add-element']

/** Rules of a chain stay in their order, because sorting is stable. */
function byKindAndName(a: Command, b: Command): number {
  const kind = kinds.indexOf(a.do) - kinds.indexOf(b.do)
  if (kind !== 0) return kind
  const [nameA, nameB] = [nameOf(a), nameOf(b)]
  return nameA < nameB ? -1 : nameA > nameB ? 1 : 0
}

function nameOf(command: Command): string {
  if ('set' in command) return command.set.name
  if ('chain' in command) {
    return typeof command.chain === 'string' ? command.chain : command.chain.name
  }
  return 'element' in command ? `${command.element.set.name} ${command.element.key.join(' ')}` : ''
}

/** Plans and renders without a kernel. */
export function nftablesReader(config: Config): PlanReader<NftablesPlan> {
  return readerOf(nftablesSettings(config))
}

export function readerOf(settings: PlanSettings): PlanReader<NftablesPlan> {
  const plan = nftablesPlanner(settings)
  const shown = { render: renderPlan, lines: planLines, renderChanges }
  return { plan, ...shown, parts: ({ parts }) => parts, only: onlyOf }
}
