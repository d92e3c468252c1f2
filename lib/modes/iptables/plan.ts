import { fixedRules } from './fixed-rules.js'
import { serviceRules } from './service-rules.js'
import { memoryByFacts } from '../planner-memory.js'
import { PersistentMap, type Derivation } from '../../state/persistent-map.js'
import type { DesiredService, DesiredState, NodeView } from '../../state/desired-state.js'
import type { FixedContext, FixedRules } from './fixed-rules.js'
import type { IptablesSettings } from './settings.js'
import type { IpFamily } from '../../state/ip.js'
import type { Rule } from '../../kernel/iptables.js'
import type { RuleContext } from './port-words.js'
import type { ServiceRules } from './service-rules.js'

/** All rules of one family. */
export interface IptablesPlan {
  readonly family: IpFamily
  readonly fixed: FixedRules
  /** By `DesiredService.key`. Rules keep their reference until the Service or the node changes. */
  readonly services: PersistentMap<ServiceRules>
  /** Node ports answer on 127.0.0.1, so a rule must keep other machines away (IT11, IT34). */
  readonly usesLocalnet: boolean
}

/** What this kernel and this iptables can do, and some others cannot. */
export interface KernelFacts {
  readonly randomFully: boolean
  /** The kernel has the `bpf` match. */
  readonly hasBpf: boolean
  /** The kernel has the `nfacct` match and the objects it counts with. */
  readonly hasAccounting: boolean
  /** The kernel has the `NFLOG` target. */
  readonly hasLog: boolean
}

/** The settings, and what this kernel can do. Both are the same for all plans. */
export type PlanSettings = Omit<IptablesSettings, 'syncPeriodMs'> & KernelFacts

/** For plans without a kernel: everything but nfacct objects, because these must first be made. */
export const offlineFacts: KernelFacts = {
  ...{ hasBpf: true, hasAccounting: false, randomFully: true, hasLog: true },
}

/** With more endpoints than this, rules carry no comments (IT42). */
const largeCluster = 1000

/** Makes plans. It remembers the rules of each Service only to save work. */
export function iptablesPlanner(settings: PlanSettings): (state: DesiredState) => IptablesPlan {
  const memoryFor = memoryByFacts<RuleContext, Memory>((context) => ({
    context,
    derivation: {},
    services: PersistentMap.empty(),
  }))
  const fixedFor = memoryByFacts(fixedRules)
  const lasts = new Map<IpFamily, LastPlan>()
  return (state) => {
    const { family, node } = state
    const last = lasts.get(family)
    if (last?.from === state.services && last.node === node) return last.plan
    const endpointCount = countEndpoints(state.services, last)
    const usesLocalnet = isLocalnetUsed(state, settings)
    const memory = memoryFor(family, {
      ...{ family, localTraffic: node.localTraffic, primaryIp: node.primaryIp },
      masqueradeAll: settings.masqueradeAll,
      countsLocalhost: settings.hasAccounting && usesLocalnet,
      hasComments: endpointCount <= largeCluster,
      hasBpf: settings.hasBpf,
      logs: isLogging(settings),
    })
    memory.services = state.services.derive(memory.derivation, (service) => {
      const made = serviceRules(service, memory.context)
      const before = memory.services.get(service.key)
      // Two different Services may have the same rules.
      return before && isSameRules(before, made) ? before : made
    })
    const fixed = fixedFor(family, fixedContext(state, settings))
    const made = Object.freeze({ family, fixed, services: memory.services, usesLocalnet })
    // The plan stays the same if only addresses without rules came or went.
    const plan = last && isSamePlan(last.plan, made) ? last.plan : made
    lasts.set(family, { from: state.services, node, endpointCount, plan })
    return plan
  }
}

function fixedContext(state: DesiredState, settings: PlanSettings): FixedContext {
  const { nodePorts, localTraffic } = state.node
  const { hasBpf, hasAccounting, hasLog: _, ...rest } = settings
  return {
    ...rest,
    family: state.family,
    localTraffic,
    nodePortAddresses: nodePorts.matchesAll ? undefined : nodePorts.addresses,
    hairpin: hasBpf ? { by: 'bpf' } : { by: 'addresses', addresses: localEndpointIps(state) },
    counts: hasAccounting,
    logs: isLogging(settings),
  }
}

const isLogging = ({ logsRefused, hasLog }: PlanSettings) => logsRefused && hasLog

function localEndpointIps({ services }: DesiredState): readonly string[] {
  const ips = new Set<string>()
  for (const { reachableEndpoints } of services.values()) {
    for (const { ip, isLocal } of reachableEndpoints) if (isLocal) ips.add(ip)
  }
  return [...ips].sort()
}

/** Whether node ports answer on 127.0.0.1 (IT34, IT35). */
function isLocalnetUsed({ family, node }: DesiredState, settings: PlanSettings): boolean {
  const { matchesAll, addresses } = node.nodePorts
  if (family === 'IPv6' || !settings.localhostNodePorts) return false
  return matchesAll || addresses.some((ip) => ip.startsWith('127.'))
}

interface Memory {
  readonly context: RuleContext
  readonly derivation: Derivation<DesiredService, ServiceRules>
  services: PersistentMap<ServiceRules>
}

interface LastPlan {
  readonly from: PersistentMap<DesiredService>
  readonly node: NodeView
  readonly endpointCount: number
  readonly plan: IptablesPlan
}

function countEndpoints(
  services: PersistentMap<DesiredService>,
  last: LastPlan | undefined,
): number {
  const { added, changed, removed } = services.since(last?.from)
  let count = last?.endpointCount ?? 0
  for (const [, now] of added) count += now.reachableEndpoints.length
  for (const [, now, before] of changed) {
    count += now.reachableEndpoints.length - before.reachableEndpoints.length
  }
  for (const [, before] of removed) count -= before.reachableEndpoints.length
  return count
}

/** Whether two lists of rules have the same text. */
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
