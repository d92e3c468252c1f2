import { setImmediate } from 'node:timers/promises'
import { canonicalRule, isSameRule } from '../../kernel/iptables.js'
import { chains } from './names.js'
import { dispatchChains, jumps, kubeletJumps, localnetGuard } from './fixed-rules.js'
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
  /** By canonical form: the rules that were not read yet. */
  readonly missing: Map<string, { readonly text: string; count: number }>
  /** By canonical form: the texts of rules that should not be there. */
  readonly surplus: Map<string, string>
  last: string | undefined
}

/** The rules that syncs wrote to and deleted from shared chains while the kernel was read. */
interface SharedChanges {
  readonly gone: ReadonlySet<string>
  readonly come: ReadonlySet<string>
}

/** After this many Services others get their turn: a millisecond or two. */
const servicesAtOnce = 100

/**
 * Compares the rules of the kernel with those that we wrote, while they are being read. Only text
 * that differs is kept.
 */
export class Verification implements SavedVisitor {
  readonly #content: Content
  readonly #own = new Map<string, OwnChain>()
  readonly #shared = new Map<string, SharedChain>()
  /** Our rules in foreign chains. Other rules there are ignored. */
  readonly #elsewhere = new Map<string, Rule[]>()

  constructor(content: Content, usesLocalnet: boolean) {
    this.#content = content
    for (const one of content.fixed.chains) this.#addOwn(one, undefined)
    for (const id of dispatchChains.map(idOf)) {
      const nothing = { missing: new Map(), surplus: new Map(), last: undefined }
      this.#shared.set(id, { isThere: false, ...nothing })
    }
    for (const placed of tailOf(content)) this.#expectShared(placed)
    for (const { table, from, rule } of usesLocalnet ? [...jumps, ...kubeletJumps] : jumps) {
      this.#addElsewhere(idOf({ table, chain: from }), rule)
    }
    if (usesLocalnet) this.#addElsewhere(`filter ${chains.kubeletFirewall}`, localnetGuard)
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

  chain(table: Table, name: string): void {
    const id = idOf({ table, chain: name })
    const known = this.#own.get(id) ?? this.#shared.get(id)
    if (known) known.isThere = true
  }

  rule(table: Table, chain: string, saved: string): void {
    const id = idOf({ table, chain })
    const own = this.#own.get(id)
    const shared = this.#shared.get(id)
    if (own) readOwn(own, saved)
    else if (shared) readShared(shared, saved)
    else {
      const wanted = this.#elsewhere.get(id)
      const found = wanted?.findIndex((rule) => isSameRule(saved, rule.text)) ?? -1
      if (found >= 0) wanted?.splice(found, 1)
    }
  }

  /**
   * The differences, after everything is read. `after` is the content that the kernel should have
   * by then. A rule that a sync changed in the meantime is no difference.
   */
  differences(after: Content): ChainDifference[] {
    const out: ChainDifference[] = []
    for (const [id, own] of this.#own) {
      const what = this.#isSettled(own, after) ? differenceOf(own) : undefined
      if (what !== undefined) out.push({ chain: id, what, fingerprint: what })
    }
    const { gone, come } = sharedChanges(this.#content, after)
    for (const [id, shared] of this.#shared) {
      const hasCome = (key: string) => come.has(formOf(id, key))
      const missing = [...shared.missing]
        .filter(([key]) => !gone.has(formOf(id, key)) || hasCome(key))
        .map(([, { text }]) => text)
      const surplus = [...shared.surplus].filter(([key]) => !hasCome(key)).map(([, text]) => text)
      const what = sharedDifference(shared, { missing, surplus, tail: this.#tailOf(id, after) })
      const fingerprint = [...missing.sort(), '', ...surplus.sort()].join('\n')
      if (what !== undefined) out.push({ chain: id, what, fingerprint })
    }
    for (const [id, [rule]] of this.#elsewhere) {
      if (rule) out.push({ chain: id, what: `lacks ${rule.text}`, fingerprint: rule.text })
    }
    return out
  }

  #addOwn(one: ChainRules, owner: string | undefined): void {
    const own = { one, owner, isThere: false, read: 0, difference: undefined }
    this.#own.set(idOf(one), own)
  }

  #expectShared(placed: DispatchRule): void {
    const missing = this.#shared.get(idOf(placed))?.missing
    const { text } = placed.rule
    const key = canonicalRule(text)
    const known = missing?.get(key)
    if (known) known.count++
    else missing?.set(key, { text, count: 1 })
  }

  #addElsewhere(id: string, rule: Rule): void {
    const rules = this.#elsewhere.get(id)
    if (rules) rules.push(rule)
    else this.#elsewhere.set(id, [rule])
  }

  #isSettled({ owner }: OwnChain, after: Content): boolean {
    if (owner === undefined) return after.fixed === this.#content.fixed
    return after.services.get(owner) === this.#content.services.get(owner)
  }

  /** IT33: the rule that must be the last of a chain; undefined if none must, or if it changed. */
  #tailOf(id: string, after: Content): Rule | undefined {
    if (id !== `nat ${chains.services}` || after.fixed !== this.#content.fixed) return undefined
    return after.fixed.tail.at(-1)
  }
}

function readOwn(own: OwnChain, saved: string): void {
  const wanted = own.one.rules[own.read++]
  if (own.difference !== undefined) return
  if (!wanted) own.difference = `has one more: ${saved}`
  else if (!isSameRule(saved, wanted.text)) own.difference = `has ${saved}, not ${wanted.text}`
}

function readShared(shared: SharedChain, saved: string): void {
  const key = canonicalRule(saved)
  shared.last = saved
  const wanted = shared.missing.get(key)
  if (!wanted) shared.surplus.set(key, saved)
  else if (--wanted.count === 0) shared.missing.delete(key)
}

function differenceOf({ one, isThere, read, difference }: OwnChain): string | undefined {
  if (!isThere) return 'is gone'
  if (difference !== undefined) return difference
  const lacking = one.rules[read]
  return lacking && `lacks ${lacking.text}`
}

function sharedDifference(
  { isThere, last }: SharedChain,
  seen: { missing: readonly string[]; surplus: readonly string[]; tail: Rule | undefined },
): string | undefined {
  if (!isThere) return 'is gone'
  const [missing] = seen.missing
  if (missing !== undefined) return `lacks ${missing}`
  const [surplus] = seen.surplus
  if (surplus !== undefined) return `has one more: ${surplus}`
  const { tail } = seen
  return tail && !isSameRule(last ?? '', tail.text) ? `does not end with ${tail.text}` : undefined
}

function sharedChanges(before: Content, after: Content): SharedChanges {
  const { added, changed, removed } = after.services.since(before.services)
  const gone = [...removed.map(([, one]) => one), ...changed.map(([, , one]) => one)]
  const come = [...added, ...changed].map(([, one]) => one)
  const isSameTail = after.fixed === before.fixed
  return {
    gone: formsOf(gone, isSameTail ? [] : tailOf(before)),
    come: formsOf(come, isSameTail ? [] : tailOf(after)),
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

function idOf({ table, chain }: { readonly table: Table; readonly chain: string }): string {
  return `${table} ${chain}`
}
