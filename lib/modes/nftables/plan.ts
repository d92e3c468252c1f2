import type { Table } from '../../kernel/nftables/model.js'
import type { DesiredService, DesiredState } from '../../state/desired-state.js'
import type { IpFamily } from '../../state/ip.js'
import { PersistentMap, type DerivedBuckets } from '../../state/persistent-map.js'
import type { ModeSettings } from '../mode.js'
import { basePart, type NodeFacts } from './base-rules.js'
import { updateClaims, type Claims } from './claims.js'
import { nftFamilyOf, tableComment, tableName } from './names.js'
import type { RulesetPart } from './part.js'
import { servicePart } from './service-part.js'

/** The whole ruleset of one family, cut into parts that change with one service port each. */
export interface NftablesPlan {
  readonly family: IpFamily
  readonly table: Table
  /** By `DesiredService.key`; the node's own part has the empty key. */
  readonly parts: PersistentMap<RulesetPart>
  readonly claims: Claims
  /** The state it was made of, for what lives beside the ruleset (localhost node ports). */
  readonly state: DesiredState
}

/** What of the settings shapes rules. */
export type PlanSettings = Pick<ModeSettings, 'masqueradeAll' | 'masqueradeBit'>

/** What is remembered of one family while its node facts stay the same. */
interface Memory {
  readonly factsText: string
  readonly facts: NodeFacts
  readonly base: RulesetPart
  readonly buckets: DerivedBuckets<DesiredService, RulesetPart>
  readonly parts: WeakMap<DesiredService, RulesetPart>
  last: NftablesPlan | undefined
}

/**
 * Makes plans. What it remembers only saves work: parts by the reference of their service, and
 * the last plan, from whose claims the next ones are made.
 */
export function nftablesPlanner(settings: PlanSettings): (state: DesiredState) => NftablesPlan {
  const memories = new Map<IpFamily, Memory>()
  return (state) => {
    const memory = memoryFor(memories, state, settings)
    const { last, facts } = memory
    const services = state.services.derive(memory.buckets, (service) => {
      let part = memory.parts.get(service)
      if (!part) {
        part = servicePart(service, facts)
        memory.parts.set(service, part)
      }
      return part
    })
    const parts = services.update([['', memory.base]])
    const plan: NftablesPlan = {
      family: state.family,
      table: { family: nftFamilyOf(state.family), name: tableName, comment: tableComment },
      parts,
      claims: updateClaims(last?.claims ?? PersistentMap.empty(), parts.since(last?.parts)),
      state,
    }
    memory.last = plan
    return plan
  }
}

function memoryFor(
  memories: Map<IpFamily, Memory>,
  state: DesiredState,
  settings: PlanSettings,
): Memory {
  const facts = factsOf(state, settings)
  const factsText = textOf(facts)
  const known = memories.get(state.family)
  if (known?.factsText === factsText) return known
  const memory: Memory = {
    factsText,
    facts,
    base: basePart(facts),
    buckets: new WeakMap(),
    parts: new WeakMap(),
    last: known?.last,
  }
  memories.set(state.family, memory)
  return memory
}

function factsOf({ family, node, serviceCidrs }: DesiredState, settings: PlanSettings): NodeFacts {
  return {
    family,
    localTraffic: node.localTraffic,
    primaryIp: node.primaryIp,
    nodePorts: node.nodePorts,
    serviceCidrs,
    masqueradeAll: settings.masqueradeAll,
    masqueradeMark: 2 ** settings.masqueradeBit,
  }
}

/** Facts as text, to compare by value what a tracker may build anew. */
function textOf({ localTraffic, primaryIp, nodePorts, serviceCidrs }: NodeFacts): string {
  return JSON.stringify([
    localTraffic.by === 'cidrs' ? localTraffic.cidrs.map(({ text }) => text) : localTraffic,
    primaryIp,
    nodePorts.matchesAll || nodePorts.addresses,
    serviceCidrs.map(({ text }) => text),
  ])
}
