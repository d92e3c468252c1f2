import type { DesiredService, DesiredState } from '../../state/desired-state.js'
import { isLoopback, parseIp, type IpFamily } from '../../state/ip.js'
import { PersistentMap, type Derivation } from '../../state/persistent-map.js'
import type { ModeSettings } from '../mode.js'
import { chainsOf, type ChainPlan } from './chains.js'
import { updateClaims, type Claims } from './claims.js'
import type { ServicePart } from './resource.js'
import { servicePart, type PartFacts } from './service-part.js'

/** Everything the kernel shall hold for one family. */
export interface IpvsPlan {
  readonly family: IpFamily
  readonly claims: Claims
  /** The iptables rules: their number does not depend on the Services. */
  readonly chains: ChainPlan
  /** The scheduler of whoever does not choose one, for when a chosen one is missing. */
  readonly scheduler: string
}

export type PlanSettings = Pick<
  ModeSettings,
  'ipvs' | 'masqueradeAll' | 'masqueradeBit' | 'conntrackTcpBeLiberal'
>

interface Memory {
  readonly factsText: string
  readonly facts: PartFacts
  readonly chains: ChainPlan
  readonly derivation: Derivation<DesiredService, ServicePart>
  last: { readonly parts: PersistentMap<ServicePart>; readonly plan: IpvsPlan } | undefined
}

/**
 * Makes plans. What it remembers only saves work: the part of a Service by its reference, and the
 * last plan, from whose claims the next ones are made.
 */
export function ipvsPlanner(settings: PlanSettings): (state: DesiredState) => IpvsPlan {
  const memories = new Map<IpFamily, Memory>()
  return (state) => {
    const memory = memoryFor(memories, state, settings)
    const { last, facts, chains } = memory
    const parts = state.services.derive(memory.derivation, (service) => servicePart(service, facts))
    const claims = updateClaims(
      last?.plan.claims ?? PersistentMap.empty(),
      parts.since(last?.parts),
    )
    const { family } = state
    // The same plan again tells whoever applies plans that there is nothing to do.
    const plan =
      last?.plan.claims === claims && last.plan.chains === chains
        ? last.plan
        : { family, claims, chains, scheduler: facts.scheduler }
    memory.last = { parts, plan }
    return plan
  }
}

function memoryFor(
  memories: Map<IpFamily, Memory>,
  state: DesiredState,
  settings: PlanSettings,
): Memory {
  const facts = factsOf(state, settings)
  const factsText = textOf(facts, state)
  const known = memories.get(state.family)
  if (known?.factsText === factsText) return known
  const memory: Memory = {
    factsText,
    facts,
    chains: chainsOf({
      family: state.family,
      localTraffic: state.node.localTraffic,
      masqueradeAll: settings.masqueradeAll,
      masqueradeMark: 2 ** settings.masqueradeBit,
      dropsInvalid: !settings.conntrackTcpBeLiberal,
    }),
    derivation: {},
    last: known?.last,
  }
  memories.set(state.family, memory)
  return memory
}

function factsOf({ family, node }: DesiredState, settings: PlanSettings): PartFacts {
  return {
    family,
    scheduler: settings.ipvs.scheduler === '' ? 'rr' : settings.ipvs.scheduler,
    primaryIp: node.primaryIp,
    nodePortAddresses: node.nodePorts.addresses.filter((text) => {
      const ip = parseIp(text)
      return ip !== undefined && !isLoopback(ip)
    }),
    ownAddresses: new Set(node.localAddresses),
  }
}

/** Facts as text, to compare by value what a tracker may build anew. */
function textOf(facts: PartFacts, { node: { localTraffic } }: DesiredState): string {
  return JSON.stringify([
    localTraffic.by === 'cidrs' ? localTraffic.cidrs.map(({ text }) => text) : localTraffic,
    facts.primaryIp,
    facts.nodePortAddresses,
    [...facts.ownAddresses],
  ])
}
