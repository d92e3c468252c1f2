import { Batch, type Rule, type Table } from '../../kernel/iptables.js'
import { chains } from './names.js'
import {
  dispatchChains,
  jumps,
  kubeletJumps,
  localnetGuard,
  type FixedRules,
} from './fixed-rules.js'
import { hasSameText, iptablesPlanner, offlineFacts, type IptablesPlan } from './plan.js'
import {
  dispatchId,
  type ChainRules,
  type DispatchRule,
  type ServiceRules,
} from './service-rules.js'
import type { PersistentMap } from '../../state/persistent-map.js'
import { iptablesSettings } from './settings.js'
import type { Config } from '../../config/config.js'
import type { PlanReader } from '../mode.js'

/** The whole plan as one input of iptables-restore, with the jumps from the built-in chains. */
export function renderPlan(plan: IptablesPlan): string {
  const batch = new Batch()
  for (const jump of jumps) batch.append(jump.table, jump.from, jump.rule)
  if (plan.usesLocalnet) {
    for (const jump of kubeletJumps) batch.append(jump.table, jump.from, jump.rule)
    batch.chain('filter', chains.kubeletFirewall)
    batch.append('filter', chains.kubeletFirewall, localnetGuard)
  }
  const services = [...plan.services.values()].sort((a, b) => (a.key < b.key ? -1 : 1))
  for (const one of plan.fixed.chains) writeChain(batch, one)
  for (const { table, chain } of dispatchChains) batch.chain(table, chain)
  for (const service of services) {
    // These rules are next to the chains to which they jump, which helps the reader.
    writeDispatch(batch, service.dispatch)
    for (const one of service.chains) writeChain(batch, one)
  }
  for (const rule of plan.fixed.tail) batch.append('nat', chains.services, rule)
  return batch.toString()
}

export function renderChanges(plan: IptablesPlan, previous: IptablesPlan | undefined): string {
  if (!previous) return renderPlan(plan)
  return changeBatch({ fixed: plan.fixed, services: plan.services }, previous).toString()
}

/** Writes the chains that all Services share. */
export function writeShared(
  batch: Batch,
  fixed: FixedRules,
  services: readonly ServiceRules[],
): void {
  for (const { table, chain } of dispatchChains) batch.chain(table, chain)
  for (const { dispatch } of services) writeDispatch(batch, dispatch)
  for (const rule of fixed.tail) batch.append('nat', chains.services, rule)
}

function writeDispatch(batch: Batch, dispatch: readonly DispatchRule[]): void {
  for (const { table, chain, rule } of dispatch) batch.append(table, chain, rule)
}

export interface Content {
  readonly fixed: FixedRules
  readonly services: PersistentMap<ServiceRules>
}

/**
 * With more deletions than this a shared chain is written anew, because the tool searches for each
 * deleted rule from the head of the chain.
 */
const mostDeletions = 32

/**
 * The changes from one content of the kernel to another. New and changed chains are written in
 * full; single rules enter and leave the shared chains. New rules go to the head, because their
 * order does not matter there and KUBE-SERVICES keeps its last rule last.
 */
export function changeBatch(next: Content, previous: Content): Batch {
  const batch = new Batch()
  const { added, changed, removed } = next.services.since(previous.services)
  const shared = new SharedChanges()
  const gone: ChainRules[] = []
  if (next.fixed !== previous.fixed) {
    gone.push(...writeChangedChains(batch, next.fixed.chains, previous.fixed.chains))
    shared.replaceTail(next.fixed.tail, previous.fixed.tail)
  }
  for (const [, service] of added) {
    for (const one of service.chains) writeChain(batch, one)
    shared.add(service.dispatch)
  }
  for (const [, service, before] of changed) {
    gone.push(...writeChangedChains(batch, service.chains, before.chains))
    shared.replace(service.dispatch, before.dispatch)
  }
  for (const [, before] of removed) {
    gone.push(...before.chains)
    shared.remove(before.dispatch)
  }
  shared.write(batch, next)
  for (const { table, chain } of gone) batch.chain(table, chain)
  for (const { table, chain } of gone) batch.deleteChain(table, chain)
  return batch
}

/** Writes the chains that are new or changed, and returns those that are gone. */
function writeChangedChains(
  batch: Batch,
  next: readonly ChainRules[],
  previous: readonly ChainRules[],
): Iterable<ChainRules> {
  const old = new Map(previous.map((one) => [`${one.table} ${one.chain}`, one]))
  for (const one of next) {
    const id = `${one.table} ${one.chain}`
    const present = old.get(id)
    if (!present || !hasSameText(present.rules, one.rules)) writeChain(batch, one)
    old.delete(id)
  }
  return old.values()
}

/** Collects the rules that enter and leave each shared chain. */
class SharedChanges {
  readonly #chains = new Map<
    string,
    { table: Table; chain: string; added: Rule[]; removed: Rule[] }
  >()
  #tail: { readonly added: readonly Rule[]; readonly removed: readonly Rule[] } | undefined

  add(rules: readonly DispatchRule[]): void {
    for (const one of rules) this.#of(one).added.push(one.rule)
  }

  remove(rules: readonly DispatchRule[]): void {
    for (const one of rules) this.#of(one).removed.push(one.rule)
  }

  replace(next: readonly DispatchRule[], previous: readonly DispatchRule[]): void {
    const before = new Set(previous.map(dispatchId))
    const now = new Set(next.map(dispatchId))
    this.add(next.filter((one) => !before.has(dispatchId(one))))
    this.remove(previous.filter((one) => !now.has(dispatchId(one))))
  }

  replaceTail(added: readonly Rule[], removed: readonly Rule[]): void {
    if (!hasSameText(added, removed)) this.#tail = { added, removed }
  }

  write(batch: Batch, next: Content): void {
    const rewritten = new Set<string>()
    for (const [id, { table, chain, added, removed }] of this.#chains) {
      if (removed.length > mostDeletions) {
        rewritten.add(id)
        continue
      }
      // Rules are prepended in reverse, so that the rules of a Service keep their order.
      for (const rule of added.reverse()) batch.prepend(table, chain, rule)
      for (const rule of removed) batch.delete(table, chain, rule)
    }
    const services = `nat ${chains.services}`
    if (this.#tail && !rewritten.has(services)) {
      for (const rule of this.#tail.added) batch.append('nat', chains.services, rule)
      for (const rule of this.#tail.removed) batch.delete('nat', chains.services, rule)
    }
    if (rewritten.size > 0) this.#rewrite(batch, next, rewritten)
  }

  #rewrite(batch: Batch, next: Content, rewritten: ReadonlySet<string>): void {
    for (const { table, chain } of dispatchChains) {
      if (rewritten.has(`${table} ${chain}`)) batch.chain(table, chain)
    }
    for (const { dispatch } of next.services.values()) {
      for (const { table, chain, rule } of dispatch) {
        if (rewritten.has(`${table} ${chain}`)) batch.append(table, chain, rule)
      }
    }
    if (!rewritten.has(`nat ${chains.services}`)) return
    for (const rule of next.fixed.tail) batch.append('nat', chains.services, rule)
  }

  #of({ table, chain }: DispatchRule) {
    const id = `${table} ${chain}`
    let changes = this.#chains.get(id)
    if (!changes) {
      changes = { table, chain, added: [], removed: [] }
      this.#chains.set(id, changes)
    }
    return changes
  }
}

export function writeChain(batch: Batch, { table, chain, rules }: ChainRules): void {
  batch.chain(table, chain)
  for (const rule of rules) batch.append(table, chain, rule)
}

/** Plans and renders without a kernel, as for a usual one. */
export function iptablesReader(config: Config): PlanReader<IptablesPlan> {
  return {
    plan: iptablesPlanner({ ...iptablesSettings(config), ...offlineFacts }),
    render: renderPlan,
    renderChanges,
    parts: ({ services }) => services,
    only: (plan, keys) => ({ ...plan, services: plan.services.pick(keys) }),
  }
}
