import type { L4Protocol, Table } from '../../kernel/nftables/model.js'
import type { DesiredService, DesiredState } from '../../state/desired-state.js'
import type { IpFamily } from '../../state/ip.js'
import { PersistentMap, type Derivation, type MapChanges } from '../../state/persistent-map.js'
import { memoryByFacts } from '../planner-memory.js'
import { updateRequests, type Requests } from '../requests.js'
import { basePart, type NodeFacts } from './base-rules.js'
import { sameRequest } from './elements.js'
import { nftFamilyOf, sharingChain, tableComment, tableName } from './names.js'
import { elementId, type ElementRequest, type RulesetPart } from './part.js'
import { sharedPart } from './balance.js'
import type { NftablesSettings } from './settings.js'
import { servicePart } from './service-part.js'

/** The whole ruleset of one family, in parts. Each part changes with one service port only. */
export interface NftablesPlan {
  readonly family: IpFamily
  readonly table: Table
  /**
   * By `DesiredService.key`. The node's part has the empty key; a shared part, its chain's name.
   */
  readonly parts: PersistentMap<RulesetPart>
  readonly requests: Requests<ElementRequest>
  /** The state that the plan was made from. Node ports on localhost need it. */
  readonly state: DesiredState
}

/** The settings that rules depend on. */
export interface PlanSettings extends Pick<NftablesSettings, 'masqueradeAll' | 'masqueradeBit'> {
  /** Rules can hash the address of a client; true by default. */
  readonly hasHash?: boolean
  /** The kernel logs refused packets to the proxy; false by default. */
  readonly logsRefused?: boolean
}

interface Memory {
  readonly facts: NodeFacts
  readonly base: RulesetPart
  readonly derivation: Derivation<DesiredService, RulesetPart>
  last: LastPlan | undefined
}

/** The chains that service ports of one protocol share. */
interface Shared {
  /** By number of places: how many service ports have it. */
  readonly users: ReadonlyMap<number, number>
  readonly part: RulesetPart
}

interface LastPlan {
  /** The parts without those that several share. */
  readonly own: PersistentMap<RulesetPart>
  readonly shared: ReadonlyMap<L4Protocol, Shared>
  readonly requests: Requests<ElementRequest>
}

/**
 * Makes plans. Only to save work it remembers parts, by the reference of their service, and the
 * last plan, with whose requests the next plan starts.
 */
export function nftablesPlanner(settings: PlanSettings): (state: DesiredState) => NftablesPlan {
  const memoryFor = memoryByFacts<NodeFacts, Memory>((facts, before) => ({
    facts,
    base: basePart(facts),
    derivation: {},
    last: before?.last,
  }))
  return (state) => {
    const memory = memoryFor(state.family, factsOf(state, settings))
    const { last, facts } = memory
    const services = state.services.derive(memory.derivation, (service) =>
      servicePart(service, facts),
    )
    const own = services.update([['', memory.base]])
    const changes = own.since(last?.own)
    const shared = sharedBy(last?.shared ?? new Map(), changes)
    const requests = updateRequests(last?.requests ?? noRequests, changes, reader)
    memory.last = { own, shared, requests }
    return {
      family: state.family,
      table: { family: nftFamilyOf(state.family), name: tableName, comment: tableComment },
      parts: withShared(own, shared),
      requests,
      state,
    }
  }
}

/** The plan as if there were only these service ports, and only the sizes that they have. */
export function onlyOf(plan: NftablesPlan, keys: readonly string[]): NftablesPlan {
  const own = plan.parts.pick(['', ...keys])
  const changes = own.since(undefined)
  const requests = updateRequests(noRequests, changes, reader)
  return { ...plan, parts: withShared(own, sharedBy(new Map(), changes)), requests }
}

function withShared(
  own: PersistentMap<RulesetPart>,
  shared: ReadonlyMap<L4Protocol, Shared>,
): PersistentMap<RulesetPart> {
  return own.update(
    Array.from(shared, ([protocol, { part }]) => [sharingChain(protocol), part] as const),
  )
}

const noRequests = PersistentMap.empty<readonly ElementRequest[]>()

const reader = {
  of: ({ elements }: RulesetPart) => elements.map((each) => [elementId(each), each] as const),
  isSame: sameRequest,
}

/** The shared parts after some changes. The work is proportional to the changes and the sizes. */
function sharedBy(
  before: ReadonlyMap<L4Protocol, Shared>,
  { added, changed, removed }: MapChanges<RulesetPart>,
): ReadonlyMap<L4Protocol, Shared> {
  const counts = new Map<L4Protocol, Map<number, number>>()
  const add = ({ choice }: RulesetPart, by: number) => {
    if (!choice) return
    const users = counts.get(choice.protocol) ?? new Map(before.get(choice.protocol)?.users)
    counts.set(choice.protocol, users.set(choice.places, (users.get(choice.places) ?? 0) + by))
  }
  for (const [, part] of added) add(part, 1)
  for (const [, part, previous] of changed) {
    add(part, 1)
    add(previous, -1)
  }
  for (const [, previous] of removed) add(previous, -1)
  const shared = new Map(before)
  for (const [protocol, users] of counts) {
    for (const [places, count] of users) if (count === 0) users.delete(places)
    const old = before.get(protocol)
    if (users.size === 0) shared.delete(protocol)
    // The part keeps its reference while the sizes stay the same, so that it counts as unchanged.
    else if (old && sameKeys(old.users, users)) shared.set(protocol, { users, part: old.part })
    else shared.set(protocol, { users, part: sharedPart(protocol, users.keys()) })
  }
  return shared
}

const sameKeys = (a: ReadonlyMap<number, number>, b: ReadonlyMap<number, number>) =>
  a.size === b.size && [...a.keys()].every((key) => b.has(key))

function factsOf({ family, node, serviceCidrs }: DesiredState, settings: PlanSettings): NodeFacts {
  return {
    family,
    localTraffic: node.localTraffic,
    primaryIp: node.primaryIp,
    nodePortAddresses: node.nodePorts.matchesAll ? undefined : node.nodePorts.addresses,
    serviceCidrs,
    masqueradeAll: settings.masqueradeAll,
    masqueradeMark: 2 ** settings.masqueradeBit,
    hasHash: settings.hasHash ?? true,
    logsRefused: settings.logsRefused ?? false,
  }
}
