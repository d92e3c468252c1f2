import { setImmediate } from 'node:timers/promises'
import { canonicalRule, targetOf, type SavedVisitor, type Table } from '../../../kernel/iptables.js'
import { jumps } from '../render.js'
import type { ChainDifference } from '../../reported-differences.js'
import type { PlacedRule } from './sub-chains.js'

interface WantedRule {
  readonly text: string
  count: number
  /** The position among the rules of its Service. Undefined for a rule that is wanted twice. */
  place: { readonly index: number; readonly service: { last: number } } | undefined
  /** It belongs to no Service. */
  readonly isStanding: boolean
}

interface ReadChain {
  /** Otherwise it is a built-in chain, which jumps to ours. */
  readonly isOwn: boolean
  isThere: boolean
  /** A rule of a Service was read, so those of no Service must be above. */
  hasService: boolean
  /** Wanted rules that are not yet read, by their canonical form. */
  readonly missing: Map<string, WantedRule>
  /** Texts of rules that are not wanted, and of rules out of order, by their canonical form. */
  readonly surplus: Map<string, string>
  readonly displaced: Map<string, string>
}

interface Wanted {
  readonly chains: Iterable<readonly [table: Table, chain: string]>
  /** The rules that belong to no Service. They come before those of Services. */
  readonly standing: readonly PlacedRule[]
  /** The rules of each Service, in their order. */
  readonly rules: Iterable<readonly PlacedRule[]>
}

/** After this many Services others get their turn: a millisecond or two. */
const servicesAtOnce = 100

const targets = new Set(jumps.map(({ rule }) => rule.args.at(-1)))

/**
 * Compares the rules of the kernel with the rules that we wrote, one by one, while they are read.
 * Rules of different Services may be in any order. Syncs go on meanwhile, and report the rules that
 * they change from the moment on when this is made.
 */
export class PortalsVerification implements SavedVisitor {
  readonly #chains = new Map<string, ReadChain>()
  readonly #rules: Wanted['rules']
  readonly #unsettled = new Set<string>()
  #isVoid = false
  #hasIgnored = false

  constructor({ chains, standing, rules }: Wanted) {
    for (const [table, chain] of chains) this.#chains.set(idOf(table, chain), emptyChain(true))
    for (const { table, chain } of jumps) this.#chains.set(idOf(table, chain), emptyChain(false))
    this.#expect(standing, true)
    for (const jump of jumps) this.#expect([jump], true)
    this.#rules = rules
  }

  /** Call it before anything is read. Syncs go on meanwhile, so it takes its time. */
  async prepare(): Promise<void> {
    let count = 0
    for (const placed of this.#rules) {
      this.#expect(placed, false)
      if (++count % servicesAtOnce === 0) await setImmediate()
    }
  }

  chain(table: Table, name: string): void {
    const known = this.#chains.get(idOf(table, name))
    if (known) known.isThere = true
  }

  rule(table: Table, chain: string, saved: string): void {
    const known = this.#chains.get(idOf(table, chain))
    if (!known) return
    if (known.isOwn || targets.has(targetOf(saved))) read(known, saved)
  }

  /** A sync writes or deletes these rules while the kernel is read, so they are not compared. */
  ignore(rules: Iterable<PlacedRule>): void {
    for (const { table, chain, rule } of rules) {
      this.#unsettled.add(`${idOf(table, chain)}\n${canonicalRule(rule.text)}`)
    }
  }

  /** A sync writes all rules anew while the kernel is read, so nothing is compared. */
  ignoreAll(): void {
    this.#isVoid = true
  }

  /** Something was ignored, so the absence of differences proves nothing. */
  get isPartial(): boolean {
    return this.#isVoid || this.#hasIgnored
  }

  /** Call it once everything is read. */
  differences(): ChainDifference[] {
    if (this.#isVoid) return []
    const out: ChainDifference[] = []
    for (const [id, chain] of this.#chains) {
      const missing = this.#settled(id, chain.missing).map(([, { text }]) => text)
      const surplus = this.#settled(id, chain.surplus).map(([, text]) => text)
      const displaced = this.#settled(id, chain.displaced).map(([, text]) => text)
      const seen = [missing, surplus, displaced] as const
      const what = inWords(chain, seen)
      if (what === undefined) continue
      const parts = seen.map((texts) => texts.sort().join('\n'))
      const isBalanced = missing.length === surplus.length
      const mayBeWording = chain.isThere && isBalanced && displaced.length === 0
      out.push({ chain: id, what, fingerprint: parts.join('\n\n'), mayBeWording })
    }
    return out
  }

  #expect(placed: readonly PlacedRule[], isStanding: boolean): void {
    const services = new Map<string, { last: number }>()
    for (const [index, { table, chain, rule }] of placed.entries()) {
      const id = idOf(table, chain)
      const missing = this.#chains.get(id)?.missing
      const key = canonicalRule(rule.text)
      const known = missing?.get(key)
      if (known) {
        known.count++
        known.place = undefined
        continue
      }
      const service = services.get(id) ?? { last: -1 }
      services.set(id, service)
      missing?.set(key, { text: rule.text, count: 1, place: { index, service }, isStanding })
    }
  }

  #settled<T>(id: string, rules: ReadonlyMap<string, T>): (readonly [string, T])[] {
    if (this.#unsettled.size === 0 || rules.size === 0) return [...rules]
    const settled = [...rules].filter(([key]) => !this.#unsettled.has(`${id}\n${key}`))
    this.#hasIgnored ||= settled.length < rules.size
    return settled
  }
}

function read(chain: ReadChain, saved: string): void {
  const key = canonicalRule(saved)
  const wanted = chain.missing.get(key)
  if (!wanted) {
    chain.surplus.set(key, saved)
    return
  }
  if (--wanted.count === 0) chain.missing.delete(key)
  if (!wanted.isStanding) chain.hasService = true
  else if (chain.hasService) chain.displaced.set(key, saved)
  if (!wanted.place) return
  const { index, service } = wanted.place
  if (index < service.last) chain.displaced.set(key, saved)
  service.last = index
}

type Texts = readonly string[]

function inWords(
  { isThere }: ReadChain,
  [[missing], [surplus], [displaced]]: readonly [Texts, Texts, Texts],
): string | undefined {
  if (!isThere) return 'is gone'
  if (missing !== undefined) return `lacks ${missing}`
  if (surplus !== undefined) return `has one more: ${surplus}`
  return displaced === undefined ? undefined : `has another order: ${displaced}`
}

function emptyChain(isOwn: boolean): ReadChain {
  return {
    isOwn,
    isThere: false,
    hasService: false,
    missing: new Map(),
    surplus: new Map(),
    displaced: new Map(),
  }
}

function idOf(table: Table, chain: string): string {
  return `${table} ${chain}`
}
