import { jumps as iptablesJumps } from '../../modes/iptables/fixed-rules.js'
import { jumps as ipvsJumps } from '../../modes/ipvs/chains.js'
import {
  fixedRules as userspaceFixed,
  jumps as userspaceJumps,
  placeRules,
  symbolicPorts,
} from '../../modes/userspace/render.js'
import { elementsWith, tableElements } from '../../modes/nftables/elements.js'
import { elementId } from '../../modes/nftables/part.js'
import { setNameOf, setNames, setOf } from '../../modes/ipvs/names.js'
import { chainIn, placeId } from '../../kernel/place.js'
import type { Chain, Element } from '../../kernel/nftables/model.js'
import type { IptablesPlan } from '../../modes/iptables/plan.js'
import type { IptablesRuleset } from './iptables-walk.js'
import type { PlannedRule } from './iptables-rule.js'
import type { IpvsPlan } from '../../modes/ipvs/plan.js'
import type { IpvsRuleset } from './ipvs-walk.js'
import type { PlannedServer } from '../../modes/ipvs/resource.js'
import type { ListenerPlan, UserspacePlan } from '../../modes/userspace/plan.js'
import type { NftablesPlan } from '../../modes/nftables/plan.js'
import type { NftablesRuleset } from './nftables-walk.js'

type Collected = Map<string, PlannedRule[]>

function append(rules: Collected, table: string, chain: string, ...more: PlannedRule[]): void {
  const id = placeId(chainIn(table, chain))
  const known = rules.get(id) ?? []
  rules.set(id, known)
  for (const rule of more) known.push(rule)
}

/** All rules of an iptables plan, built-in chains included. */
export function iptablesRuleset(plan: IptablesPlan): IptablesRuleset {
  const rules: Collected = new Map()
  for (const { table, from, rule } of iptablesJumps) append(rules, table, from, rule)
  for (const { table, chain, rules: own } of plan.fixed.chains) append(rules, table, chain, ...own)
  for (const { chains, dispatch } of plan.services.values()) {
    for (const { table, chain, rules: own } of chains) append(rules, table, chain, ...own)
    for (const { table, chain, rule } of dispatch) append(rules, table, chain, rule)
  }
  append(rules, 'nat', 'KUBE-SERVICES', ...plan.fixed.tail)
  return rules
}

/** Portal rules, and the listeners behind their ports. */
export interface UserspaceRuleset {
  readonly rules: IptablesRuleset
  /** By the number that the rules have for the port of a listener. */
  readonly listeners: ReadonlyMap<number, ListenerPlan>
}

const withoutRange = { portRange: undefined, logsRefused: false }

/** Higher than every real port, so that no real port is taken for a listener. */
const firstSymbolicPort = 100_000

/** A listener has no port before it runs, so each gets a number instead. */
export function userspaceRuleset(plan: UserspacePlan): UserspaceRuleset {
  const rules: Collected = new Map()
  const listeners = new Map<number, ListenerPlan>()
  for (const { table, chain, rule } of [...userspaceJumps, ...userspaceFixed(withoutRange)]) {
    append(rules, table, chain, rule)
  }
  for (const service of plan.services.values()) {
    const numbers: Partial<Record<ListenerPlan['list'], string>> = {}
    const names: typeof numbers = {}
    for (const listener of service.listeners) {
      const port = firstSymbolicPort + listeners.size
      listeners.set(port, listener)
      numbers[listener.list] = String(port)
      names[listener.list] = symbolicPorts[listener.list] ?? ''
    }
    const numbered = placeRules(service.rules, numbers)
    for (const [index, { table, chain, rule }] of placeRules(service.rules, names).entries()) {
      const { text } = rule
      append(rules, table, chain, { text, numbered: numbered[index]?.rule.text ?? text })
    }
  }
  return { rules, listeners }
}

/** The table that an nftables plan makes. */
export function nftablesRuleset(plan: NftablesPlan): NftablesRuleset {
  const chains = new Map<string, Chain>()
  const elements = new Map<string, Element>()
  for (const part of plan.parts.values()) {
    for (const chain of part.chains) chains.set(chain.name, chain)
    for (const element of (part.tables ?? []).flatMap(tableElements)) {
      elements.set(elementId(element), element)
    }
  }
  for (const [first] of plan.requests.values()) {
    if (!first) continue
    for (const element of elementsWith(first)) elements.set(elementId(element), element)
  }
  return { family: plan.table.family, chains, elements }
}

/** Fixed rules, and what the Services put into sets, virtual servers and the dummy device. */
export function ipvsRuleset({ family, chains, requests }: IpvsPlan): IpvsRuleset {
  const rules: Collected = new Map()
  for (const { table, chain, rule } of [...ipvsJumps, ...chains]) {
    append(rules, table, chain, rule)
  }
  const members = new Map(setNames.map((name) => [name, new Set<string>()]))
  const servers = new Map<string, PlannedServer>()
  const addresses = new Set<string>()
  for (const [id, [first]] of requests) {
    const resource = first?.resource
    if (resource?.kind === 'server') servers.set(id, resource)
    else if (resource?.kind === 'address') addresses.add(resource.ip)
    else if (resource) members.get(resource.set)?.add(resource.member)
  }
  const sets = new Map(
    Array.from(members, ([name, list]) => [
      setNameOf(family, name),
      { type: setOf(family, name).type, members: list },
    ]),
  )
  return { rules, sets, servers, addresses }
}
