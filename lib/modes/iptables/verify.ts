import { setImmediate } from 'node:timers/promises'
import { canonicalRule, isSameRule, targetOf } from '../../kernel/iptables.js'
import { absentRule } from '../difference.js'
import { chains, isOwnChain, isServiceChain } from './names.js'
import { dispatchChains, jumps, kubeletJumps, localnetGuard } from './fixed-rules.js'
import { ownTables } from './full-sync.js'
import type { ChainDifference } from '../reported-differences.js'
import type { ChainRules, DispatchRule, ServiceRules } from './service-rules.js'
import type { Content } from './render.js'
import type { Rule, SavedVisitor, Table } from '../../kernel/iptables.js'

/** A chain that has only our rules, in a fixed order. */
interface OwnChain {
  readonly one: ChainRules
  readonly owner: string | undefined
  isThere: boolean
  read: number
  difference: string | undefined
}

/** A chain with rules of many Services, in any order. */
interface SharedChain {
  isThere: boolean
  /** By text: how many of each rule were not read yet. */
  readonly missing: Map<string, number>
  /** The texts that no such rule has. One may be a rule that iptables prints in other words. */
  readonly others: string[]
  /** The last rules, as many as the tail has. */
  readonly end: string[]
}

/** A chain of others with rules of ours. Other rules there are ignored, but for more jumps to us. */
interface ForeignChain {
  readonly missing: Rule[]
  readonly surplus: string[]
}

/** What syncs wrote while the kernel was read, and the rules that they deleted from shared chains. */
interface SharedChanges {
  readonly gone: ReadonlySet<string>
  readonly come: ReadonlySet<string>
  readonly newChains: ReadonlySet<string>
}

/** After this many Services others get their turn: a millisecond or two. */
const servicesAtOnce = 100

/**
 * Compares the rules of the kernel with those that we wrote, while they are being read. Only text
 * that differs is kept.
 */
export class Verification implements SavedVisitor {
  readonly #content: Content
  readonly #own = new ChainMap<OwnChain>()
  readonly #shared = new ChainMap<SharedChain>()
  readonly #elsewhere = new ChainMap<ForeignChain>()
  /** Chains of no Service. A full sync deletes those to which no rule of others jumps. */
  readonly #stale = new Set<string>()

  constructor(content: Content, usesLocalnet: boolean) {
    this.#content = content
    for (const one of content.fixed.chains) this.#addOwn(one, undefined)
    for (const place of dispatchChains) {
      const nothing = { missing: new Map(), others: [], end: [] }
      this.#shared.set(place, { isThere: false, ...nothing })
    }
    for (const placed of tailOf(content)) this.#expectShared(placed)
    for (const { table, from, rule } of usesLocalnet ? [...jumps, ...kubeletJumps] : jumps) {
      this.#addElsewhere({ table, chain: from }, rule)
    }
    const kubelet: ChainPlace = { table: 'filter', chain: chains.kubeletFirewall }
    if (usesLocalnet) this.#addElsewhere(kubelet, localnetGuard)
  }

  /** Call it before anything is read. Syncs go on meanwhile, so it takes its time. */
  async prepare(): Promise<void> {
    let count = 0
    for (const { key, chains: own, dispatch } of this.#content.services.values()) {
      for (const one of own) this.#addOwn(one, key)
      for (const placed of dispatch) this.#expectShared(placed)
      if (++count % servicesAtOnce === 0) await setImmediate()
    }
  }

  chain(table: Table, chain: string, policy: string): void {
    const known = this.#own.get(table, chain) ?? this.#shared.get(table, chain)
    if (known) known.isThere = true
    const isOfOurTables = ownTables.includes(table)
    if (!known && isOfOurTables && isServiceChain(chain)) this.#stale.add(idOf({ table, chain }))
    // A built-in chain may have a jump that we never write there.
    const isForeign = policy !== '-' && isOfOurTables
    if (isForeign && !this.#elsewhere.get(table, chain)) {
      this.#elsewhere.set({ table, chain }, { missing: [], surplus: [] })
    }
  }

  rule(table: Table, chain: string, saved: string): void {
    const own = this.#own.get(table, chain)
    const shared = own ? undefined : this.#shared.get(table, chain)
    if (own) readOwn(own, saved)
    else if (shared) readShared(shared, saved, this.#content.fixed.tail.length)
    else {
      const foreign = this.#elsewhere.get(table, chain)
      if (foreign) readForeign(foreign, saved)
      if (this.#stale.size === 0 || this.#stale.has(idOf({ table, chain }))) return
      this.#stale.delete(idOf({ table, chain: targetOf(saved) ?? '' }))
    }
  }

  /**
   * The differences, after everything is read. `after` is the content that the kernel should have
   * by then. A rule that a sync changed in the meantime is no difference.
   */
  differences(after: Content): ChainDifference[] {
    const out: ChainDifference[] = []
    for (const [id, own] of this.#own.entries()) {
      const what = this.#isSettled(own, after) ? differenceOf(own) : undefined
      const mayBeWording = own.isThere && own.read === own.one.rules.length
      if (what !== undefined) out.push({ chain: id, what, fingerprint: what, mayBeWording })
    }
    const { gone, come, newChains } = sharedChanges(this.#content, after)
    for (const [id, shared] of this.#shared.entries()) {
      const { missing, surplus } = inOtherWords(shared)
      const hasCome = ([key]: readonly [string, string]) => come.has(formOf(id, key))
      const hasGone = ([key]: readonly [string, string]) => gone.has(formOf(id, key))
      const lacks = missing.filter((rule) => !hasGone(rule) || hasCome(rule)).map(textOf)
      const isMore = surplus.filter((rule) => !hasCome(rule)).map(textOf)
      const seen = { missing: lacks, surplus: isMore, tail: this.#tailOf(id, after) }
      const what = sharedDifference(shared, seen)
      const fingerprint = [...lacks.sort(), '', ...isMore.sort()].join('\n')
      const mayBeWording = lacks.length > 0 && lacks.length === isMore.length
      if (what !== undefined) out.push({ chain: id, what, fingerprint, mayBeWording })
    }
    for (const [id, { missing, surplus }] of this.#elsewhere.entries()) {
      const lacks = missing.map(({ text }) => `lacks ${text}`)
      const all = [...lacks, ...surplus.map((text) => `has one more: ${text}`)]
      const [what] = all
      const mayBeWording = missing.length === surplus.length
      const fingerprint = all.join('\n')
      if (what !== undefined) out.push({ chain: id, what, fingerprint, mayBeWording })
    }
    for (const id of this.#stale) {
      const what = 'belongs to no Service'
      if (!newChains.has(id)) out.push({ chain: id, what, fingerprint: what, mayBeWording: false })
    }
    return out
  }

  #addOwn(one: ChainRules, owner: string | undefined): void {
    this.#own.set(one, { one, owner, isThere: false, read: 0, difference: undefined })
  }

  #expectShared({ table, chain, rule: { text } }: DispatchRule): void {
    const missing = this.#shared.get(table, chain)?.missing
    missing?.set(text, (missing.get(text) ?? 0) + 1)
  }

  #addElsewhere(place: ChainPlace, rule: Rule): void {
    const known = this.#elsewhere.get(place.table, place.chain)
    if (known) known.missing.push(rule)
    else this.#elsewhere.set(place, { missing: [rule], surplus: [] })
  }

  #isSettled({ owner }: OwnChain, after: Content): boolean {
    if (owner === undefined) return after.fixed === this.#content.fixed
    return after.services.get(owner) === this.#content.services.get(owner)
  }

  /** IT33: the rules that must be the last of a chain; none if they changed. */
  #tailOf(id: string, after: Content): readonly Rule[] {
    const isSame = id === `nat ${chains.services}` && after.fixed === this.#content.fixed
    return isSame ? after.fixed.tail : []
  }
}

function readOwn(own: OwnChain, saved: string): void {
  const wanted = own.one.rules[own.read++]
  if (own.difference !== undefined) return
  if (!wanted) own.difference = `has one more: ${saved}`
  else if (!isSameRule(saved, wanted.text)) own.difference = `has ${saved}, not ${wanted.text}`
}

function readShared(shared: SharedChain, saved: string, tailLength: number): void {
  shared.end.push(saved)
  if (shared.end.length > tailLength) shared.end.shift()
  const count = shared.missing.get(saved)
  if (count === undefined) shared.others.push(saved)
  else if (count === 1) shared.missing.delete(saved)
  else shared.missing.set(saved, count - 1)
}

function readForeign({ missing, surplus }: ForeignChain, saved: string): void {
  const found = missing.findIndex((rule) => isSameRule(saved, rule.text))
  if (found >= 0) missing.splice(found, 1)
  else if (isOwnChain(targetOf(saved) ?? '')) surplus.push(saved)
}

/** A rule by its canonical form. */
type Formed = readonly [form: string, text: string]

const textOf = ([, text]: Formed) => text

/** What is left when a rule is also found in the other words that iptables may print. */
function inOtherWords({ missing, others }: SharedChain): {
  readonly missing: readonly Formed[]
  readonly surplus: readonly Formed[]
} {
  const surplus = new Map<string, string[]>()
  for (const text of others) {
    const form = canonicalRule(text)
    surplus.set(form, [...(surplus.get(form) ?? []), text])
  }
  const wanted = [...missing].flatMap(([text, count]) =>
    Array.from({ length: count }, (): Formed => [canonicalRule(text), text]),
  )
  return {
    missing: wanted.filter(([form]) => surplus.get(form)?.pop() === undefined),
    surplus: [...surplus].flatMap(([form, texts]) => texts.map((text): Formed => [form, text])),
  }
}

function differenceOf({ one, isThere, read, difference }: OwnChain): string | undefined {
  if (!isThere) return 'is gone'
  if (difference !== undefined) return difference
  const lacking = one.rules[read]
  return lacking && `lacks ${lacking.text}`
}

function sharedDifference(
  { isThere, end }: SharedChain,
  seen: { missing: readonly string[]; surplus: readonly string[]; tail: readonly Rule[] },
): string | undefined {
  if (!isThere) return 'is gone'
  const [missing] = seen.missing
  if (missing !== undefined) return `lacks ${missing}`
  const [surplus] = seen.surplus
  if (surplus !== undefined) return `has one more: ${surplus}`
  const misplaced = absentRule(seen.tail, end)
  return misplaced && `does not end with ${misplaced.text}`
}

function sharedChanges(before: Content, after: Content): SharedChanges {
  const { added, changed, removed } = after.services.since(before.services)
  const gone = [...removed.map(([, one]) => one), ...changed.map(([, , one]) => one)]
  const come = [...added, ...changed].map(([, one]) => one)
  const isSameTail = after.fixed === before.fixed
  return {
    gone: formsOf(gone, isSameTail ? [] : tailOf(before)),
    come: formsOf(come, isSameTail ? [] : tailOf(after)),
    newChains: new Set([after.fixed, ...come].flatMap(({ chains: own }) => own.map(idOf))),
  }
}

function formsOf(services: readonly ServiceRules[], tail: readonly DispatchRule[]): Set<string> {
  const rules = [...services.flatMap(({ dispatch }) => dispatch), ...tail]
  return new Set(rules.map((placed) => formOf(idOf(placed), canonicalRule(placed.rule.text))))
}

/** The form of a rule, with its chain. */
function formOf(id: string, canonical: string): string {
  return `${id}\n${canonical}`
}

function tailOf({ fixed }: Content): DispatchRule[] {
  return fixed.tail.map((rule) => ({ table: 'nat', chain: chains.services, rule }))
}

type ChainPlace = Pick<ChainRules, 'table' | 'chain'>

function idOf({ table, chain }: ChainPlace): string {
  return `${table} ${chain}`
}

/** Something about each chain. Finding it makes no new text, because a kernel has many rules. */
class ChainMap<T> {
  readonly #tables = new Map<Table, Map<string, T>>()

  get(table: Table, chain: string): T | undefined {
    return this.#tables.get(table)?.get(chain)
  }

  set({ table, chain }: ChainPlace, value: T): void {
    const known = this.#tables.get(table)
    if (known) known.set(chain, value)
    else this.#tables.set(table, new Map([[chain, value]]))
  }

  /** With the table and the name of each chain. */
  *entries(): Iterable<readonly [string, T]> {
    for (const [table, chains] of this.#tables) {
      for (const [chain, value] of chains) yield [idOf({ table, chain }), value]
    }
  }
}
