import { counted } from '../../state/names.js'
import { targetOf, type WantedRule, type Table } from '../../kernel/iptables.js'
import { chainIn } from '../../kernel/place.js'
import { kernelError } from '../../kernel/command.js'
import { iptablesPlanner, type IptablesPlan } from './plan.js'
import {
  absentRule,
  ownerText,
  type Difference,
  chainDifferences,
  jumpDifferences,
  rulesIn,
} from '../difference.js'
import { chains, isServiceChain } from './names.js'
import { canLog } from '../refusal-log.js'
import { dispatchChains, jumps, kubeletJumps, localnetGuard } from './fixed-rules.js'
import { oldJumps, readOwnTables, type Found } from './full-sync.js'
import type { DesiredState } from '../../state/desired-state.js'
import type { IptablesSettings } from './settings.js'
import { openPrograms, supportsBpf, type OpenDeps } from './open.js'

/** Compares the kernel with what it should hold. Changes nothing. */
export async function readDifferences(
  state: DesiredState,
  settings: IptablesSettings,
  deps: Partial<OpenDeps>,
): Promise<readonly Difference[]> {
  const { family } = state
  const { run, backend } = deps
  try {
    const iptables = await openPrograms({ family, backend, run })
    const found = await readOwnTables(iptables)
    // Where there is no such table, it may be that none can be.
    if (!found.some(({ table }) => table === 'nat')) await iptables.check()
    const plan = iptablesPlanner({
      ...settings,
      hasBpf: await supportsBpf(iptables),
      randomFully: iptables.capabilities.randomFully,
      hasLog: settings.logsRefused && (await canLog(iptables)),
      // A check for the objects would create them, so the existing rules are asked instead.
      hasAccounting: found.some(({ chains: inTable }) =>
        [...inTable.values()].some(({ rules }) => rules.some((text) => text.includes(' nfacct '))),
      ),
    })
    return iptablesDifferences(plan(state), found)
  } catch (error) {
    throw kernelError(error, `compare ${family} iptables rules`)
  }
}

/** Everything in the kernel that is not what the plan wants, rule by rule. */
function iptablesDifferences(plan: IptablesPlan, found: Found): readonly Difference[] {
  const wanted = wantedChains(plan)
  const differences: Difference[] = []
  const saved = (table: Table, chain: string) => rulesIn(found, table, chain)
  for (const { table, from, to, rule } of jumps) {
    const present = (saved(table, from) ?? []).filter((text) => targetOf(text) === to)
    differences.push(...jumpDifferences(chainIn(table, from), rule.text, present))
  }
  for (const { table, chain, text } of oldJumps(found)) {
    differences.push({ place: chainIn(table, chain), expected: undefined, found: text, owner: '' })
  }
  if (plan.usesLocalnet) differences.push(...localnetDifferences(saved))
  for (const { table, chain, ...wish } of wanted.values()) {
    const seen = chainDifferences(chainIn(table, chain), wish, saved(table, chain))
    const isTailed = seen.length === 0 && table === 'nat' && chain === chains.services
    differences.push(...seen, ...(isTailed ? tailDifference(plan, saved(table, chain)) : []))
  }
  for (const { table, chains: inTable } of found) {
    for (const [chain, { rules }] of inTable) {
      if (!isServiceChain(chain) || wanted.has(`${table} ${chain}`)) continue
      const stale = `a chain of ${counted(rules.length, 'rule')} that belongs to no Service port any more`
      const place = chainIn(table, chain)
      differences.push({ place, expected: undefined, found: stale, owner: '' })
    }
  }
  return differences
}

interface WantedChain {
  readonly table: Table
  readonly chain: string
  readonly rules: WantedRule[]
  readonly isOrdered: boolean
}

function wantedChains(plan: IptablesPlan): ReadonlyMap<string, WantedChain> {
  const wanted = new Map<string, WantedChain>()
  const at = (table: Table, chain: string, isOrdered: boolean) => {
    const key = `${table} ${chain}`
    const known = wanted.get(key) ?? { table, chain, rules: [], isOrdered }
    wanted.set(key, known)
    return known.rules
  }
  for (const { table, chain, rules } of plan.fixed.chains) {
    at(table, chain, true).push(...rules.map(({ text }) => ({ text, owner: '' })))
  }
  // In these chains, rules of different Services may be in any order.
  for (const { table, chain } of dispatchChains) at(table, chain, false)
  for (const { key, chains: own, dispatch } of plan.services.values()) {
    const owner = ownerText(key)
    for (const { table, chain, rules } of own) {
      at(table, chain, true).push(...rules.map(({ text }) => ({ text, owner })))
    }
    for (const { table, chain, rule } of dispatch) {
      at(table, chain, false).push({ text: rule.text, owner })
    }
  }
  at('nat', chains.services, false).push(
    ...plan.fixed.tail.map(({ text }) => ({ text, owner: '' })),
  )
  return wanted
}

/** IT33: in a chain with all rules, one of the tail may hide a Service's. */
function tailDifference(
  { fixed: { tail } }: IptablesPlan,
  saved: readonly string[] = [],
): readonly Difference[] {
  const end = saved.slice(-tail.length)
  const misplaced = absentRule(tail, end)
  if (!misplaced) return []
  const expected = `at the end: ${misplaced.text}`
  const found = `at the end: ${end.join(', ')}`
  return [{ place: chainIn('nat', chains.services), expected, found, owner: '' }]
}

/** Looks only for the rules we need, because kubelet uses the chain, too (IT11). */
function localnetDifferences(
  saved: (table: Table, chain: string) => readonly string[] | undefined,
): readonly Difference[] {
  const needed = [
    ...kubeletJumps.map(({ table, from, rule }) => ({ table, chain: from, rule })),
    { table: 'filter', chain: chains.kubeletFirewall, rule: localnetGuard } as const,
  ]
  return needed.flatMap(({ table, chain, rule }) =>
    jumpDifferences(chainIn(table, chain), rule.text, saved(table, chain) ?? []).filter(
      ({ expected }) => expected !== undefined,
    ),
  )
}
