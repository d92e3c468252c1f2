import type { Table } from '../../kernel/nftables/model.js'
import type { DesiredService, DesiredState } from '../../state/desired-state.js'
import type { IpFamily } from '../../state/ip.js'
import { PersistentMap, type Derivation, type MapChanges } from '../../state/persistent-map.js'
import type { ModeSettings } from '../mode.js'
import { basePart, type NodeFacts } from './base-rules.js'
import { updateClaims, type Claims } from './claims.js'
import { choiceChain, nftFamilyOf, tableComment, tableName } from './names.js'
import type { RulesetPart } from './part.js'
import { choicePart } from './balance.js'
import { servicePart } from './service-part.js'

/** The whole ruleset of one family, cut into parts that change with one service port each. */
export interface NftablesPlan {
  readonly family: IpFamily
  readonly table: Table
  /** By `DesiredService.key`; the node's own part has the empty key, shared chains their name. */
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
  readonly derivation: Derivation<DesiredService, RulesetPart>
  last: LastPlan | undefined
}

/** The chains that several parts share, and how many. */
interface UsedChoice {
  readonly part: RulesetPart
  readonly users: number
}

interface LastPlan {
  /** The parts without those that several share. */
  readonly own: PersistentMap<RulesetPart>
  /** By the chain in which they choose. */
  readonly choices: ReadonlyMap<string, UsedChoice>
  readonly claims: Claims
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
    const services = state.services.derive(memory.derivation, (service) =>
      servicePart(service, facts),
    )
    const own = services.update([['', memory.base]])
    const changes = own.since(last?.own)
    const choices = countChoices(last?.choices ?? new Map(), changes)
    const claims = updateClaims(last?.claims ?? PersistentMap.empty(), changes)
    memory.last = { own, choices, claims }
    return {
      family: state.family,
      table: { family: nftFamilyOf(state.family), name: tableName, comment: tableComment },
      parts: own.update(Array.from(choices, ([name, { part }]) => [name, part] as const)),
      claims,
      state,
    }
  }
}

/** Work is proportional to the changes and to how many different numbers there are. */
function countChoices(
  before: ReadonlyMap<string, UsedChoice>,
  { added, changed, removed }: MapChanges<RulesetPart>,
): ReadonlyMap<string, UsedChoice> {
  const choices = new Map(before)
  const add = ({ choice }: RulesetPart, by: number) => {
    if (!choice) return
    const name = choiceChain(choice)
    const present = choices.get(name)
    const users = (present?.users ?? 0) + by
    // By reference, so that one that is still used is no change.
    if (users > 0) choices.set(name, { part: present?.part ?? choicePart(choice), users })
    else choices.delete(name)
  }
  // More users before fewer, so that none is counted below zero.
  for (const [, part] of [...added, ...changed]) add(part, 1)
  for (const [, , previous] of changed) add(previous, -1)
  for (const [, previous] of removed) add(previous, -1)
  return choices
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
    derivation: {},
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
