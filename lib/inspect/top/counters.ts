import { kernelError } from '../../kernel/command.js'
import { canonicalRule, Iptables, type CountedRule } from '../../kernel/iptables.js'
import { chainIn, itemId } from '../../kernel/place.js'
import { iptablesReader } from '../../modes/iptables/render.js'
import { ipvsReader } from '../../modes/ipvs/render.js'
import { ownerOf } from '../../modes/ipvs/changes.js'
import { serverId } from '../../modes/ipvs/resource.js'
import type { DesiredState } from '../../state/desired-state.js'
import type { IpFamily } from '../../state/ip.js'
import type { KernelCounters } from './rows.js'
import type { Config, ModeName } from '../../config/config.js'

/** The counters of the rules or virtual servers of a mode, by `DesiredService.key`. */
export async function kernelCounters(
  mode: ModeName,
  states: readonly DesiredState[],
  config: Config,
): Promise<ReadonlyMap<string, KernelCounters>> {
  if (mode === 'iptables') return iptablesCounters(states, config)
  if (mode === 'ipvs') return ipvsCounters(states, config)
  // Rules of nftables mode have no counters.
  return new Map()
}

/** Only the first packet of a connection meets nat rules, so their packets are connections. */
async function iptablesCounters(
  states: readonly DesiredState[],
  config: Config,
): Promise<ReadonlyMap<string, KernelCounters>> {
  const planner = iptablesReader(config)
  const sums = new Map<string, { total: number; errors: number }>()
  for (const state of states) {
    const byRule = new Map<string, { total: number; errors: number }>()
    for (const { key, dispatch } of planner.plan(state).services.values()) {
      const sum = sums.get(key) ?? { total: 0, errors: 0 }
      sums.set(key, sum)
      for (const { table, chain, rule } of dispatch) {
        byRule.set(ruleId(table, chain, rule.text), sum)
      }
    }
    for (const { table, chain, rule, packets } of await countedRules(state.family)) {
      const isOurs = chain.startsWith('KUBE-')
      const sum = isOurs ? byRule.get(ruleId(table, chain, rule)) : undefined
      // In table filter a Service has only rules that refuse.
      if (sum) sum[table === 'nat' ? 'total' : 'errors'] += packets
    }
  }
  return sums
}

async function countedRules(family: IpFamily): Promise<readonly CountedRule[]> {
  try {
    const iptables = await Iptables.open({ family })
    return [...(await iptables.counters('nat')), ...(await iptables.counters('filter'))]
  } catch (error) {
    throw kernelError(error, `count what ${family} iptables rules have matched`)
  }
}

function ruleId(table: string, chain: string, text: string): string {
  return itemId({ place: chainIn(table, chain), text: canonicalRule(text) })
}

async function ipvsCounters(
  states: readonly DesiredState[],
  config: Config,
): Promise<ReadonlyMap<string, KernelCounters>> {
  const { Ipvs } = await import('../../kernel/ipvs.js')
  const ipvs = Ipvs.open()
  const sums = new Map<string, { total: number; bytesIn: number; bytesOut: number }>()
  try {
    const planner = ipvsReader(config)
    for (const state of states) {
      const plan = planner.plan(state)
      for (const { stats, ...server } of await ipvs.listServers(state.family)) {
        const key = ownerOf(plan, serverId(server))
        const sum = sums.get(key) ?? { total: 0, bytesIn: 0, bytesOut: 0 }
        sum.total += Number(stats.connections)
        sum.bytesIn += Number(stats.inBytes)
        sum.bytesOut += Number(stats.outBytes)
        sums.set(key, sum)
      }
    }
  } finally {
    ipvs.close()
  }
  return sums
}
