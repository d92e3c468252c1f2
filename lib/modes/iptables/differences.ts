import {
  bytecode,
  compareChain,
  Iptables,
  rule,
  targetOf,
  type WantedRule,
} from '../../kernel/iptables.js'
import { chainIn } from '../../kernel/place.js'
import { kernelError } from '../iptables-error.js'
import { iptablesPlanner, type IptablesPlan } from './plan.js'
import { ownTables } from './apply.js'
import { missingPlace, ownerText, type Difference } from '../difference.js'
import { chains, isServiceChain } from './names.js'
import { dispatchChains, jumps, kubeletJumps, localnetGuard } from './fixed-rules.js'
import { foundIn, type Found } from './full-sync.js'
import type { DesiredState } from '../../state/desired-state.js'
import type { IptablesSettings } from './settings.js'
import type { OpenDeps } from './open.js'
import type { Table } from '../../kernel/iptables.js'

/** What the kernel holds against what it should hold. Reads only. */
export async function readDifferences(
  state: DesiredState,
  settings: IptablesSettings,
  deps: Partial<OpenDeps>,
): Promise<readonly Difference[]> {
  const { family } = state
  const { run, backend = 'auto' } = deps
  try {
    const iptables = await Iptables.open({ family, backend, ...(run ? { run } : {}) })
    await iptables.check()
    const saved = []
    for (const table of ownTables) saved.push(...(await iptables.save(table)))
    const probe = rule({ matches: [bytecode([[6, 0, 0, 0]])], jump: 'RETURN' })
    const plan = iptablesPlanner({
      ...settings,
      hasBpf: await iptables.supports('nat', probe),
      randomFully: iptables.capabilities.randomFully,
      // Whoever wrote the rules has made the objects they count with; asking would make them, too.
      hasAccounting: saved.some(({ chains }) =>
        [...chains.values()].some(({ rules }) => rules.some((text) => text.includes(' nfacct '))),
      ),
    })
    return iptablesDifferences(plan(state), foundIn(saved))
  } catch (error) {
    throw kernelError(error, `compare ${family} iptables rules`)
  }
}

/** Everything in the kernel that is not what the plan wants, rule by rule. */
export function iptablesDifferences(plan: IptablesPlan, found: Found): readonly Difference[] {
  const wanted = wantedChains(plan)
  const differences: Difference[] = []
  const saved = (table: Table, chain: string) => found.get(table)?.get(chain)?.rules
  for (const { table, from, to, rule } of jumps) {
    const present = (saved(table, from) ?? []).filter((text) => targetOf(text) === to)
    const place = chainIn(table, from)
    const wish = { rules: [{ text: rule.text, owner: '' }], isOrdered: false }
    for (const each of compareChain(wish, present)) differences.push({ place, ...each })
  }
  if (plan.usesLocalnet) differences.push(...localnetDifferences(saved))
  for (const { table, chain, rules, isOrdered } of wanted.values()) {
    const place = chainIn(table, chain)
    const present = saved(table, chain)
    if (!present) differences.push(missingPlace(place, rules[0]?.owner ?? ''))
    for (const each of compareChain({ rules, isOrdered }, present)) {
      differences.push({ place, ...each })
    }
  }
  for (const [table, inTable] of found) {
    for (const [chain, { rules }] of inTable) {
      if (!isServiceChain(chain) || wanted.has(`${table} ${chain}`)) continue
      const stale = `a chain of ${rules.length} rules that belongs to no Service port any more`
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
  // Rules of different Services may stand in any order there.
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

/** The chain is kubelet's too: only what we need is looked for (IT11). */
function localnetDifferences(
  saved: (table: Table, chain: string) => readonly string[] | undefined,
): readonly Difference[] {
  const needed = [
    ...kubeletJumps.map(({ table, from, rule }) => ({ table, chain: from, rule })),
    { table: 'filter', chain: chains.kubeletFirewall, rule: localnetGuard } as const,
  ]
  return needed.flatMap(({ table, chain, rule }) => {
    const wish = { rules: [{ text: rule.text, owner: '' }], isOrdered: false }
    return compareChain(wish, saved(table, chain))
      .filter(({ expected }) => expected !== undefined)
      .map((each) => ({ place: chainIn(table, chain), ...each }))
  })
}
