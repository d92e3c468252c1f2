import { canonical, isSameRule } from './wording.js'
import { chains } from './names.js'
import { dispatchChains, jumps, kubeletJumps, localnetGuard } from './fixed-rules.js'
import type { ChainRules } from './service-rules.js'
import type { Content } from './render.js'
import type { Rule, SavedVisitor, Table } from '../../kernel/iptables.js'

/** A chain that is not as we left it. */
export interface Difference {
  readonly chain: string
  /** In words. */
  readonly what: string
  /** What the chain reads like now: tells a difference that comes back from a new one. */
  readonly fingerprint: string
}

/** A chain of ours alone: these rules, in this order. */
interface OwnChain {
  readonly one: ChainRules
  readonly owner: string | undefined
  isThere: boolean
  read: number
  difference: string | undefined
}

/** A chain with rules of many: each once, in any order. */
interface SharedChain {
  isThere: boolean
  /** How often a rule is still to be read; by its canonical wording. */
  readonly missing: Map<string, number>
  readonly surplus: string[]
  last: string | undefined
}

/**
 * Compares what the kernel holds with what we left there, rule by rule, while it is being read:
 * nothing of the text is kept but what differs.
 */
export class Verification implements SavedVisitor {
  readonly #content: Content
  readonly #own = new Map<string, OwnChain>()
  readonly #shared = new Map<string, SharedChain>()
  /** Rules of ours in chains of others; what else stands there is not our business. */
  readonly #elsewhere = new Map<string, Rule[]>()

  constructor(content: Content, usesLocalnet: boolean) {
    this.#content = content
    for (const one of content.fixed.chains) this.#addOwn(one, undefined)
    for (const { key, chains: own } of content.services.values()) {
      for (const one of own) this.#addOwn(one, key)
    }
    for (const id of dispatchChains.map(idOf)) {
      this.#shared.set(id, { isThere: false, missing: new Map(), surplus: [], last: undefined })
    }
    for (const [id, text] of sharedRules(content)) add(this.#shared.get(id)?.missing, text, 1)
    for (const { table, from, rule } of usesLocalnet ? [...jumps, ...kubeletJumps] : jumps) {
      this.#addElsewhere(idOf({ table, chain: from }), rule)
    }
    if (usesLocalnet) this.#addElsewhere(`filter ${chains.kubeletFirewall}`, localnetGuard)
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
   * What differs, once everything is read. `after` is what was in force by then: what a sync
   * changed meanwhile counts for nothing.
   */
  differences(after: Content): Difference[] {
    const out: Difference[] = []
    for (const [id, own] of this.#own) {
      const what = this.#isSettled(own, after) ? differenceOf(own) : undefined
      if (what !== undefined) out.push({ chain: id, what, fingerprint: what })
    }
    const now = after === this.#content ? undefined : new Map<string, Set<string>>()
    if (now) for (const [id, text] of sharedRules(after)) setOf(now, id).add(text)
    for (const [id, shared] of this.#shared) {
      const texts = now && setOf(now, id)
      const missing = [...shared.missing.keys()].filter((text) => texts?.has(text) ?? true)
      const surplus = shared.surplus.filter((text) => !texts?.has(text))
      const fingerprint = [...missing.sort(), '', ...surplus.sort()].join('\n')
      const what = sharedDifference(shared, { missing, surplus, tail: this.#tailOf(id, after) })
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

  #addElsewhere(id: string, rule: Rule): void {
    const rules = this.#elsewhere.get(id)
    if (rules) rules.push(rule)
    else this.#elsewhere.set(id, [rule])
  }

  #isSettled({ owner }: OwnChain, after: Content): boolean {
    if (owner === undefined) return after.fixed === this.#content.fixed
    return after.services.get(owner) === this.#content.services.get(owner)
  }

  /** IT33: what must come last. Undefined where nothing must, or where it has just changed. */
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
  const text = canonical(saved)
  shared.last = text
  if (shared.missing.has(text)) add(shared.missing, text, -1)
  else shared.surplus.push(text)
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
  return tail && last !== canonical(tail.text) ? `does not end with ${tail.text}` : undefined
}

/** Every rule of the chains that all Services share. */
function* sharedRules({ fixed, services }: Content): Iterable<readonly [id: string, text: string]> {
  for (const { dispatch } of services.values()) {
    for (const one of dispatch) yield [idOf(one), canonical(one.rule.text)]
  }
  for (const { text } of fixed.tail) yield [`nat ${chains.services}`, canonical(text)]
}

function idOf({ table, chain }: { readonly table: Table; readonly chain: string }): string {
  return `${table} ${chain}`
}

function add(counts: Map<string, number> | undefined, text: string, by: number): void {
  const count = (counts?.get(text) ?? 0) + by
  if (count > 0) counts?.set(text, count)
  else counts?.delete(text)
}

function setOf(sets: Map<string, Set<string>>, id: string): Set<string> {
  let set = sets.get(id)
  if (!set) {
    set = new Set()
    sets.set(id, set)
  }
  return set
}
