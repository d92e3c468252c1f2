import { ruleText, targetText } from '../../kernel/nftables/text-statements.js'
import { chainPlace } from '../../modes/nftables/differences.js'
import { sourceBucket } from '../../kernel/jenkins-hash.js'
import { amongEndpoints, drawn, elementAt, type ChosenTarget } from './drawn.js'
import { cidrContains, parseIp } from '../../state/ip.js'
import { isLocal } from './iptables-rule.js'
import type { Item, Place } from '../../kernel/place.js'
import { finish, start, through, throughChain, withHop, type Branch, type Passed } from './ways.js'
import type {
  Chain,
  Element,
  Field,
  Rule,
  Statement,
  Verdict,
} from '../../kernel/nftables/model.js'
import type { NftFamily } from '../../kernel/nftables/model.js'
import { holds, type NodeSurroundings, type Packet, type Way } from './packet.js'

/** A ruleset as the kernel holds it. */
export interface NftablesRuleset {
  readonly family: NftFamily
  readonly chains: ReadonlyMap<string, Chain>
  /** Elements by `set key key…`. */
  readonly elements: ReadonlyMap<string, Element>
}

/** Walks the first packet of a connection through the rules, as the kernel would. */
export function walkNftables(
  rules: NftablesRuleset,
  packet: Packet,
  node: NodeSurroundings,
): readonly Way[] {
  const walker = new Walker(rules, node)
  const local = ({ destination }: Packet) => isLocal(destination, node)
  const isOwn = packet.inInterface === undefined
  let branches = walker.hook(start(packet), isOwn ? 'output' : 'prerouting')
  branches = through(branches, (branch) => {
    if (local(branch.packet)) return walker.hook([branch], 'input')
    return isOwn ? [branch] : walker.hook([branch], 'forward')
  })
  branches = through(branches, (branch) =>
    local(branch.packet) ? [branch] : walker.hook([branch], 'postrouting'),
  )
  return finish(branches, local)
}

class Walker {
  readonly #rules: NftablesRuleset
  readonly #node: NodeSurroundings

  constructor(rules: NftablesRuleset, node: NodeSurroundings) {
    this.#rules = rules
    this.#node = node
  }

  /** Walks through the base chains of a hook, by priority. */
  hook(branches: readonly Branch[], hook: string): readonly Branch[] {
    const base = [...this.#rules.chains.values()]
      .filter((chain) => chain.base?.hook === hook)
      .sort((a, b) => (a.base?.priority ?? 0) - (b.base?.priority ?? 0))
    return base.reduce<readonly Branch[]>(
      (current, chain) =>
        through(current, (branch) =>
          this.#chain(branch, [chainPlace(chain.name)]).map((passed) => passed.branch),
        ),
      branches,
    )
  }

  /** Walks through the last chain of the path. */
  #chain(branch: Branch, path: readonly Place[]): readonly Passed[] {
    const place = path.at(-1) ?? chainPlace('')
    const rules = (this.#rules.chains.get(place.name)?.rules ?? []).filter((rule) =>
      holds(this.#node, { place, text: ruleText(this.#rules.family, rule) }),
    )
    return throughChain(branch, rules, (each, rule) => this.#rule(each, rule, path))
  }

  /** Applies the statements of a rule from left to right, until one does not match. */
  #rule(branch: Branch, rule: Rule, path: readonly Place[]): readonly Passed[] {
    const text = ruleText(this.#rules.family, rule)
    const place = path.at(-1) ?? chainPlace('')
    const at = { path, item: { place, text }, rule: text, comment: rule.comment }
    let current = branch
    for (const statement of rule.statements) {
      if (statement.kind === 'mark-change') current = marked(current, statement, at)
      const passed = this.#act(current, statement, at)
      if (passed) return passed
      if (!this.#matches(statement, current.packet)) break
    }
    return [{ branch: current, isDecided: false }]
  }

  /** What a statement does with the packet; undefined for one that only tests. */
  #act(branch: Branch, statement: Statement, at: RuleAt): readonly Passed[] | undefined {
    const { path, item, rule } = at
    const { packet } = branch
    const decided = (why: string, change: Partial<Branch>): readonly Passed[] => [
      { branch: withHop(branch, { path, item, rule, why }, change), isDecided: true },
    ]
    switch (statement.kind) {
      case 'masquerade':
        return decided(
          'the source becomes an address of this node, so that answers come back through it',
          { packet: { ...packet, isMasqueraded: true } },
        )
      case 'reject':
        return decided('refused, and the sender is told', { end: 'rejected' })
      case 'dnat':
      case 'dnat-by-map':
      case 'dnat-by-source':
        return this.#send(branch, statement, at)
      case 'random-verdict':
        return drawn(statement.verdicts, statement.by, packet).flatMap(({ of, share, how }) => {
          const probability = branch.probability * share
          const hop = { path, item, rule, why: how }
          return this.#verdict(withHop({ ...branch, probability }, hop), of, path)
        })
      case 'verdict': {
        const { verdict } = statement
        const hop = { path, item, rule, why: whyOf(verdict, at.comment), ...leadingInto(verdict) }
        return this.#verdict(withHop(branch, hop), verdict, path)
      }
      case 'verdict-map': {
        const found = this.#lookUp(statement.map, statement.fields, packet)
        if (found?.verdict === undefined) return [{ branch, isDecided: false }]
        const why = `${found.key.join(' . ')} is in map ${statement.map}: ${whyOf(found.verdict, found.comment)}`
        const hop = { path, ...elementAt(found), why, ...leadingInto(found.verdict) }
        return this.#verdict(withHop(branch, hop), found.verdict, path)
      }
      default:
        return undefined
    }
  }

  /** Sends the packet to an endpoint. */
  #send(branch: Branch, statement: Sending, { path, item, rule }: RuleAt): readonly Passed[] {
    const { packet } = branch
    if (statement.kind === 'dnat') {
      const targets = drawn(statement.targets, statement.by, packet)
      const chosen = targets.map(({ of, ...rest }) => ({ target: of, item, rule, ...rest }))
      return toTargets(branch, chosen, path)
    }
    const isMeant = this.#matches({ ...statement, kind: 'protocol' }, packet)
    const targets = isMeant ? this.#inMap(statement, packet) : []
    return targets.length === 0 ? [{ branch, isDecided: false }] : toTargets(branch, targets, path)
  }

  #inMap(statement: Exclude<Sending, { kind: 'dnat' }>, packet: Packet): readonly ChosenTarget[] {
    if (statement.kind === 'dnat-by-map') return this.#numbered(statement, packet)
    const place = sourceBucket(packet.source, statement.places)
    const element = this.#element(statement.map, String(place))
    if (!element?.target) return []
    const how = `by the address of the client, at place ${place} of its table`
    return [{ target: element.target, ...elementAt(element), share: 1, how }]
  }

  #verdict(branch: Branch, verdict: Verdict, path: readonly Place[]): readonly Passed[] {
    if (verdict.to === 'drop') return [{ branch: { ...branch, end: 'dropped' }, isDecided: true }]
    if (verdict.to === 'return') return [{ branch, isDecided: true }]
    const inside = this.#chain(branch, [...path, chainPlace(verdict.chain)])
    // The chain goes on after a jump, but not after a goto.
    if (verdict.to === 'goto') return inside.map((passed) => ({ ...passed, isDecided: true }))
    return inside
  }

  #lookUp(set: string, fields: readonly Field[], packet: Packet): Element | undefined {
    const key = fields.map((field) => valueOf(field, packet)).join(' ')
    return this.#element(set, key)
  }

  #element(set: string, key: string): Element | undefined {
    const element = this.#rules.elements.get(`${set} ${key}`)
    return element && holds(this.#node, elementAt(element).item) ? element : undefined
  }

  /**
   * All targets that a map has for the packet. Each is equally likely, because an empty place leads
   * to another draw.
   */
  #numbered(
    { map, choices }: Extract<Statement, { kind: 'dnat-by-map' }>,
    { destination, port }: Packet,
  ): readonly ChosenTarget[] {
    const found = new Map<string, Omit<ChosenTarget, 'share' | 'how'>>()
    for (let index = 0; index < choices; index++) {
      const element = this.#element(map, `${destination} ${port} ${index}`)
      if (!element?.target) continue
      const text = targetText(element.target)
      if (!found.has(text)) found.set(text, { target: element.target, ...elementAt(element) })
    }
    const share = 1 / found.size
    const how = amongEndpoints(found.size, 'by chance')
    return [...found.values()].map((each) => ({ ...each, share, how }))
  }

  #matches(statement: Statement, packet: Packet): boolean {
    switch (statement.kind) {
      case 'address': {
        const ip = parseIp(statement.field === 'saddr' ? packet.source : packet.destination)
        const isInside = statement.cidrs.some(
          (cidr) => ip !== undefined && cidrContains({ ...cidr, family: packet.family }, ip),
        )
        return isInside !== statement.not
      }
      case 'member':
        return this.#lookUp(statement.set, statement.fields, packet) !== undefined
      case 'local':
        return isLocal(statement.field === 'saddr' ? packet.source : packet.destination, this.#node)
      case 'interface': {
        const { name, prefix, not } = statement
        const own = packet.inInterface ?? ''
        return (prefix ? own.startsWith(name) : own === name) !== not
      }
      case 'protocol':
        return packet.protocol.toLowerCase() === statement.protocol
      case 'connection':
        return statement.is === 'new' || packet.isDnated
      case 'mark-test':
        return (packet.mark & statement.bits) !== 0
      default:
        return true
    }
  }
}

type Sending = Extract<Statement, { readonly kind: 'dnat' | 'dnat-by-map' | 'dnat-by-source' }>

interface RuleAt {
  readonly path: readonly Place[]
  readonly item: Item
  readonly rule: string
  readonly comment: string | undefined
}

function marked(
  branch: Branch,
  { by, bits }: Extract<Statement, { kind: 'mark-change' }>,
  { path, item, rule }: RuleAt,
): Branch {
  const { packet } = branch
  const mark = (by === 'xor' ? packet.mark ^ bits : packet.mark | bits) >>> 0
  const why = by === 'or' ? 'marked, for masquerading later' : 'the mark is removed'
  return withHop(branch, { path, item, rule, why }, { packet: { ...packet, mark } })
}

function toTargets(
  branch: Branch,
  targets: readonly ChosenTarget[],
  path: readonly Place[],
): readonly Passed[] {
  return targets.map(({ item, rule, share, how, target: { ip, port } }) => {
    const probability = branch.probability * share
    const packet = { ...branch.packet, destination: ip, port, isDnated: true }
    const why = `${how}: ${ip} port ${port}`
    return {
      branch: withHop({ ...branch, probability }, { path, item, rule, why }, { packet }),
      isDecided: true,
    }
  })
}

function valueOf(field: Field, packet: Packet): string {
  switch (field) {
    case 'saddr':
      return packet.source
    case 'daddr':
      return packet.destination
    case 'l4proto':
      return packet.protocol.toLowerCase()
    case 'dport':
      return String(packet.port)
  }
}

function whyOf(verdict: Verdict, comment: string | undefined): string {
  const prefix = comment === undefined ? '' : `${comment}: `
  if (verdict.to === 'drop') return `${prefix}dropped, and the sender gets no answer`
  if (verdict.to === 'return') return `${prefix}nothing to do here`
  return `${prefix}on to chain ${verdict.chain}`
}

function leadingInto(verdict: Verdict): { readonly into?: Place } {
  return 'chain' in verdict ? { into: chainPlace(verdict.chain) } : {}
}
