import { fixedRules } from './fixed-rules.js'
import { serviceRules } from './service-rules.js'
import type { Derivation, PersistentMap } from '../../state/persistent-map.js'
import type { DesiredService, DesiredState, NodeView } from '../../state/desired-state.js'
import type { FixedRules, HairpinTest } from './fixed-rules.js'
import type { ModeSettings } from '../mode.js'
import type { IpFamily } from '../../state/ip.js'
import type { Rule } from '../../kernel/iptables.js'
import type { RuleContext } from './port-words.js'
import type { ServiceRules } from './service-rules.js'

/** All rules of one family. */
export interface IptablesPlan {
  readonly family: IpFamily
  readonly fixed: FixedRules
  /** By `DesiredService.key`; the same reference as long as neither Service nor node changed. */
  readonly services: PersistentMap<ServiceRules>
  /** 127.0.0.1 answers on node ports, so the guard against outsiders is needed (IT11, IT34). */
  readonly usesLocalnet: boolean
}

/** What the settings and this kernel decide, for all plans of a run. */
export interface PlanSettings {
  readonly masqueradeBit: number
  readonly masqueradeAll: boolean
  readonly localhostNodePorts: boolean
  readonly randomFully: boolean
  readonly dropsInvalid: boolean
  /** The kernel has the `bpf` match. */
  readonly hasBpf: boolean
  /** The kernel has the `nfacct` match and the objects it counts with. */
  readonly hasAccounting: boolean
}

/** Plans without asking a kernel. It assumes every feature except counting objects. */
export function offlinePlanner(
  settings: Omit<ModeSettings, 'families'>,
  facts: Partial<PlanSettings> = {},
): IptablesPlanner {
  return new IptablesPlanner({
    ...settings,
    dropsInvalid: !settings.conntrackTcpBeLiberal,
    ...{ hasBpf: true, hasAccounting: false, randomFully: true },
    ...facts,
  })
}

/** With more endpoints than this, rules carry no comments (IT42). */
export const largeCluster = 1000

/** Remembers the rules of each Service, so a new state costs only what changed in it. */
export class IptablesPlanner {
  readonly #settings: PlanSettings
  readonly #families = new Map<IpFamily, Memory>()

  constructor(settings: PlanSettings) {
    this.#settings = settings
  }

  plan(state: DesiredState): IptablesPlan {
    const memory = this.#families.get(state.family)
    if (memory && memory.services === state.services && memory.node === state.node) {
      return memory.plan
    }
    const endpointCount = countEndpoints(state.services, memory)
    const context = this.#context(state, endpointCount > largeCluster)
    const contextKey = JSON.stringify(context, (_, value: unknown) =>
      typeof value === 'bigint' ? value.toString() : value,
    )
    const kept = memory?.contextKey === contextKey ? memory : undefined
    const derivation = kept?.derivation ?? {}
    const services = state.services.derive(derivation, (service) => {
      const made = serviceRules(service, context)
      const before = kept?.plan.services.get(service.key)
      // Some changes of a Service do not change its rules.
      return before && isSameRules(before, made) ? before : made
    })
    const hairpin = this.#hairpin(state)
    const fixedKey = JSON.stringify([keyOfNode(state.node), hairpin])
    const fixed = kept?.fixedKey === fixedKey ? kept.plan.fixed : this.#fixed(state, hairpin)
    const usesLocalnet = this.#usesLocalnet(state)
    const plan: IptablesPlan = Object.freeze({
      family: state.family,
      fixed,
      services,
      usesLocalnet,
    })
    const { services: from, node } = state
    this.#families.set(state.family, {
      ...{ services: from, node, endpointCount, contextKey, derivation, fixedKey },
      // A change of addresses that no rule uses makes no new plan.
      plan: memory && isSamePlan(memory.plan, plan) ? memory.plan : plan,
    })
    return this.#families.get(state.family)?.plan ?? plan
  }

  #context(state: DesiredState, isLarge: boolean): RuleContext {
    const { localTraffic, primaryIp } = state.node
    const { masqueradeAll, hasAccounting } = this.#settings
    const countsLocalhost = hasAccounting && this.#usesLocalnet(state)
    const { family } = state
    return {
      ...{ family, localTraffic, primaryIp, masqueradeAll, countsLocalhost },
      hasComments: !isLarge,
    }
  }

  #fixed({ family, node }: DesiredState, hairpin: HairpinTest): FixedRules {
    const { hasAccounting: counts, ...settings } = this.#settings
    return fixedRules({ ...settings, family, node, hairpin, counts })
  }

  #hairpin(state: DesiredState): HairpinTest {
    if (this.#settings.hasBpf) return { by: 'bpf' }
    const addresses = new Set<string>()
    for (const { reachableEndpoints } of state.services.values()) {
      for (const { ip, isLocal } of reachableEndpoints) if (isLocal) addresses.add(ip)
    }
    return { by: 'addresses', addresses: [...addresses].sort() }
  }

  /** IT34, IT35. */
  #usesLocalnet({ family, node }: DesiredState): boolean {
    const { matchesAll, addresses } = node.nodePorts
    if (family === 'IPv6' || !this.#settings.localhostNodePorts) return false
    return matchesAll || addresses.some((ip) => ip.startsWith('127.'))
  }
}

interface Memory {
  readonly services: PersistentMap<DesiredService>
  readonly node: NodeView
  readonly endpointCount: number
  readonly contextKey: string
  readonly derivation: Derivation<DesiredService, ServiceRules>
  readonly fixedKey: string
  readonly plan: IptablesPlan
}

function countEndpoints(services: PersistentMap<DesiredService>, memory: Memory | undefined) {
  const { added, changed, removed } = services.since(memory?.services)
  let count = memory?.endpointCount ?? 0
  for (const [, now] of added) count += now.reachableEndpoints.length
  for (const [, now, before] of changed) {
    count += now.reachableEndpoints.length - before.reachableEndpoints.length
  }
  for (const [, before] of removed) count -= before.reachableEndpoints.length
  return count
}

/** The parts of the node that decide about the fixed rules. */
function keyOfNode({ nodePorts, localTraffic }: NodeView): unknown {
  const pods =
    localTraffic.by === 'cidrs' ? localTraffic.cidrs.map(({ text }) => text) : localTraffic
  return [nodePorts.matchesAll || nodePorts.addresses, pods]
}

/** Whether two lists of rules would be the same text. */
export function hasSameText(a: readonly Rule[], b: readonly Rule[]): boolean {
  return a === b || (a.length === b.length && a.every(({ text }, index) => text === b[index]?.text))
}

function isSameRules(a: ServiceRules, b: ServiceRules): boolean {
  return (
    a.chains.length === b.chains.length &&
    a.dispatch.length === b.dispatch.length &&
    a.chains.every(({ chain, rules }, index) => {
      const other = b.chains[index]
      return chain === other?.chain && hasSameText(rules, other.rules)
    }) &&
    a.dispatch.every(({ table, chain, rule }, index) => {
      const other = b.dispatch[index]
      return table === other?.table && chain === other.chain && rule.text === other.rule.text
    })
  )
}

function isSamePlan(a: IptablesPlan, b: IptablesPlan): boolean {
  if (a.fixed !== b.fixed || a.usesLocalnet !== b.usesLocalnet) return false
  const { added, changed, removed } = b.services.since(a.services)
  return added.length + changed.length + removed.length === 0
}
