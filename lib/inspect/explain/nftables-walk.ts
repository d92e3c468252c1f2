import { ruleText, targetText, verdictText } from '../../kernel/nftables/text-statements.js'
import { elementText } from '../../modes/nftables/differences.js'
import { cidrContains, parseIp } from '../../state/ip.js'
import { isLocal } from './iptables-rule.js'
import { finish, start, through, withHop, type Branch } from './ways.js'
import type {
  Chain,
  DnatTarget,
  Element,
  Field,
  Rule,
  Statement,
  Verdict,
} from '../../kernel/nftables/model.js'
import type { NftFamily } from '../../kernel/nftables/model.js'
import type { NodeSurroundings, Packet, Way } from './packet.js'

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

/** What a chain said: go on behind the jump, or enough for this base chain. */
interface Passed {
  readonly branch: Branch
  readonly isDecided: boolean
}

class Walker {
  readonly #rules: NftablesRuleset
  readonly #node: NodeSurroundings

  constructor(rules: NftablesRuleset, node: NodeSurroundings) {
    this.#rules = rules
    this.#node = node
  }

  /** The base chains of a hook, by priority. */
  hook(branches: readonly Branch[], hook: string): readonly Branch[] {
    const base = [...this.#rules.chains.values()]
      .filter((chain) => chain.base?.hook === hook)
      .sort((a, b) => (a.base?.priority ?? 0) - (b.base?.priority ?? 0))
    return base.reduce<readonly Branch[]>(
      (current, chain) =>
        through(current, (branch) =>
          this.#chain(branch, chain.name, chain.name).map((passed) => passed.branch),
        ),
      branches,
    )
  }

  #chain(branch: Branch, name: string, where: string): readonly Passed[] {
    let open: readonly Branch[] = [branch]
    const decided: Passed[] = []
    for (const rule of this.#rules.chains.get(name)?.rules ?? []) {
      const next: Branch[] = []
      for (const current of open) {
        for (const passed of this.#rule(current, rule, where)) {
          if (passed.isDecided || passed.branch.end !== undefined) decided.push(passed)
          else next.push(passed.branch)
        }
      }
      open = next
    }
    return [...decided, ...open.map((rest) => ({ branch: rest, isDecided: false }))]
  }

  /** A rule's statements from left to right; the first that does not match ends it. */
  #rule(branch: Branch, rule: Rule, where: string): readonly Passed[] {
    const text = ruleText(this.#rules.family, rule)
    let { packet } = branch
    let changed = branch
    for (const statement of rule.statements) {
      switch (statement.kind) {
        case 'mark-change': {
          const { by, bits } = statement
          const mark = (by === 'xor' ? packet.mark ^ bits : packet.mark | bits) >>> 0
          packet = { ...packet, mark }
          const why = by === 'or' ? 'marked, for masquerading later' : 'the mark has done its work'
          changed = withHop(changed, { where, rule: text, why }, { packet })
          break
        }
        case 'remember':
          break
        case 'masquerade': {
          packet = { ...packet, isMasqueraded: true }
          const why =
            'the source becomes an address of this node, so that answers come back through it'
          return [
            { branch: withHop(changed, { where, rule: text, why }, { packet }), isDecided: true },
          ]
        }
        case 'dnat-by-map': {
          const isMeant = this.#matches({ ...statement, kind: 'protocol' }, packet)
          const targets = isMeant ? this.#numbered(statement, packet) : []
          if (targets.length === 0) return [{ branch: changed, isDecided: false }]
          return toTargets(changed, packet, { where, targets })
        }
        case 'dnat': {
          const targets = statement.targets.map((target) => ({ target, rule: text }))
          return toTargets(changed, packet, { where, targets })
        }
        case 'reject': {
          const why = 'refused, and the sender is told'
          return [
            {
              branch: withHop(changed, { where, rule: text, why }, { end: 'rejected' }),
              isDecided: true,
            },
          ]
        }
        case 'random-verdict':
          return statement.verdicts.flatMap((verdict) => {
            const probability = changed.probability / statement.verdicts.length
            const hop = { where, rule: text, why: 'one of the endpoints by chance' }
            return this.#verdict(withHop({ ...changed, probability }, hop), verdict, where)
          })
        case 'verdict': {
          const why = whyOf(statement.verdict, rule.comment)
          const hop = { where, rule: text, why, ...leadingInto(statement.verdict) }
          return this.#verdict(withHop(changed, hop), statement.verdict, where)
        }
        case 'verdict-map': {
          const found = this.#lookUp(statement.map, statement.fields, packet)
          if (found?.verdict === undefined) return [{ branch: changed, isDecided: false }]
          const key = found.key.join(' . ')
          const why = `${key} stands in map ${statement.map}: ${whyOf(found.verdict, found.comment)}`
          const element = `element ${statement.map} { ${key} : ${verdictText(found.verdict)} }`
          return this.#verdict(
            withHop(changed, { where, rule: element, why, ...leadingInto(found.verdict) }),
            found.verdict,
            where,
          )
        }
        default:
          if (!this.#matches(statement, packet)) return [{ branch: changed, isDecided: false }]
      }
    }
    return [{ branch: changed, isDecided: false }]
  }

  #verdict(branch: Branch, verdict: Verdict, where: string): readonly Passed[] {
    if (verdict.to === 'drop') return [{ branch: { ...branch, end: 'dropped' }, isDecided: true }]
    // From the chain that a goto led to nothing comes back here; from a jump it goes on.
    if (verdict.to === 'return') return [{ branch, isDecided: true }]
    const inside = this.#chain(branch, verdict.chain, `${where} > ${verdict.chain}`)
    if (verdict.to === 'goto') return inside.map((passed) => ({ ...passed, isDecided: true }))
    return inside
  }

  #lookUp(set: string, fields: readonly Field[], packet: Packet): Element | undefined {
    const key = fields.map((field) => valueOf(field, packet)).join(' ')
    return this.#rules.elements.get(`${set} ${key}`)
  }

  /** All that a map of targets has for the packet, which is each as often: empty places are drawn again. */
  #numbered(
    { map, choices }: Extract<Statement, { kind: 'dnat-by-map' }>,
    { destination, port }: Packet,
  ): readonly ChosenTarget[] {
    const found = new Map<string, ChosenTarget>()
    for (let index = 0; index < choices; index++) {
      const element = this.#rules.elements.get(`${map} ${destination} ${port} ${index}`)
      if (!element?.target) continue
      const rule = `element ${map} { ${elementText(element)} }`
      const text = targetText(element.target)
      if (!found.has(text)) found.set(text, { target: element.target, rule })
    }
    return [...found.values()]
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

/** A target, and the rule or element that names it. */
interface ChosenTarget {
  readonly target: DnatTarget
  readonly rule: string
}

function toTargets(
  branch: Branch,
  packet: Packet,
  { targets, where }: { where: string; targets: readonly ChosenTarget[] },
): readonly Passed[] {
  return targets.map(({ rule, target: { ip, port } }) => {
    const probability = branch.probability / targets.length
    const to = { ...packet, destination: ip, port, isDnated: true }
    const why = `one of ${targets.length} endpoints by chance: ${ip} port ${port}`
    return {
      branch: withHop({ ...branch, probability }, { where, rule, why }, { packet: to }),
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
  if (verdict.to === 'drop') return `${prefix}thrown away without a word`
  if (verdict.to === 'return') return `${prefix}nothing to do here`
  return `${prefix}on to chain ${verdict.chain}`
}

function leadingInto(verdict: Verdict): { readonly into?: string } {
  return 'chain' in verdict ? { into: verdict.chain } : {}
}
