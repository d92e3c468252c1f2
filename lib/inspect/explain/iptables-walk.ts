import { commentOf, type RuleSpec } from '../../kernel/iptables.js'
import { isPortalChain } from '../../modes/userspace/names.js'
import { chainIn, placeId, type Place } from '../../kernel/place.js'
import { isLocal, walkedRule, type PlannedRule, type WalkedRule } from './iptables-rule.js'
import { finish, start, through, throughChain, withHop, type Branch, type Passed } from './ways.js'
import { holds, type NodeSurroundings, type Packet, type Way } from './packet.js'
import { addressOf } from '../../state/ip.js'

/** The rules of each chain of a plan by `placeId`, built-in chains included. */
export type IptablesRuleset = ReadonlyMap<string, readonly PlannedRule[]>

/** Walks the first packet of a connection through the rules, as the kernel would. */
export function walkIptables(
  rules: IptablesRuleset,
  packet: Packet,
  node: NodeSurroundings,
): readonly Way[] {
  const walker = new IptablesWalker(rules, node)
  const local = ({ destination }: Packet) => isLocal(destination, node)
  const isOwn = packet.inInterface === undefined
  let branches = walker.table(start(packet), 'nat', isOwn ? 'OUTPUT' : 'PREROUTING')
  if (isOwn) branches = walker.table(branches, 'filter', 'OUTPUT')
  branches = through(branches, (branch) =>
    local(branch.packet)
      ? walker.table([branch], 'filter', 'INPUT')
      : isOwn
        ? [branch]
        : walker.table([branch], 'filter', 'FORWARD'),
  )
  branches = through(branches, (branch) =>
    local(branch.packet) ? [branch] : walker.table([branch], 'nat', 'POSTROUTING'),
  )
  return finish(branches, local)
}

/** Walks packets through the chains of a table. The mode decides the order of the tables. */
export class IptablesWalker {
  readonly #rules: IptablesRuleset
  readonly #node: NodeSurroundings
  readonly #walked = new Map<string, readonly WalkedRule[]>()

  constructor(rules: IptablesRuleset, node: NodeSurroundings) {
    this.#rules = rules
    this.#node = node
  }

  table(branches: readonly Branch[], table: string, chain: string): readonly Branch[] {
    return through(branches, (branch) =>
      this.#chain(branch, [chainIn(table, chain)]).map((passed) => passed.branch),
    )
  }

  /** Walks through the last chain of the path. */
  #chain(branch: Branch, path: readonly Place[]): readonly Passed[] {
    const rules = this.#rulesOf(path)
    return throughChain(branch, rules, (each, rule) => this.#rule(each, rule, path))
  }

  #rule(branch: Branch, rule: WalkedRule, path: readonly Place[]): readonly Passed[] {
    const isMet = rule.tests.every((test) => test(branch.packet, this.#node))
    if (!isMet) return [{ branch, isDecided: false }]
    if (rule.probability === 1) return this.#act(branch, rule, path)
    const part = (share: number) => ({ ...branch, probability: branch.probability * share })
    const rest = { branch: part(1 - rule.probability), isDecided: false }
    return [rest, ...this.#act(part(rule.probability), rule, path)]
  }

  #act(
    branch: Branch,
    { text, spec, shown, probability }: WalkedRule,
    path: readonly Place[],
  ): readonly Passed[] {
    const { jump: target = '', jumpArgs: targetArgs = [] } = spec
    const { packet } = branch
    const place = path.at(-1) ?? chainIn('', '')
    const hop = { path, item: { place, text }, rule: text, why: whyOf(shown, probability, place) }
    const done = (change: Partial<Branch>, isDecided: boolean): Passed[] => [
      { branch: withHop(branch, hop, change), isDecided },
    ]
    switch (target) {
      case '':
        return [{ branch, isDecided: false }]
      case 'RETURN':
        return [{ branch, isDecided: false, returns: true }]
      case 'ACCEPT':
        return done({}, true)
      case 'DROP':
        return done({ end: 'dropped' }, true)
      case 'REJECT':
        return done({ end: 'rejected' }, true)
      case 'NFLOG':
        return done({}, false)
      case 'MARK':
        return done({ packet: { ...packet, mark: changedMark(packet.mark, targetArgs) } }, false)
      case 'MASQUERADE':
        return done({ packet: { ...packet, isMasqueraded: true } }, true)
      case 'DNAT':
        return done({ packet: redirected(packet, targetArgs[1] ?? '') }, true)
      case 'REDIRECT': {
        const address = packet.family === 'IPv4' ? '127.0.0.1' : '::1'
        const [here = address] = this.#node.localAddresses
        const port = Number(targetArgs[1])
        return done({ packet: { ...packet, destination: here, port, isDnated: true } }, true)
      }
      default: {
        const into = chainIn(place.table ?? '', target)
        return this.#chain(withHop(branch, { ...hop, into }), [...path, into])
      }
    }
  }

  #rulesOf(path: readonly Place[]): readonly WalkedRule[] {
    const place = path.at(-1)
    const id = place ? placeId(place) : ''
    let walked = this.#walked.get(id)
    if (!walked) {
      walked = (this.#rules.get(id) ?? [])
        .filter(({ text }) => place && holds(this.#node, { place, text }))
        .map(walkedRule)
      this.#walked.set(id, walked)
    }
    return walked
  }
}

function changedMark(mark: number, [option, value]: readonly string[]): number {
  const bits = Number(value)
  return (option === '--xor-mark' ? mark ^ bits : mark | bits) >>> 0
}

/** `10.0.0.1:80`, `[fd00::1]:80`, or `:80` where only the port changes. */
function redirected(packet: Packet, to: string): Packet {
  const address = addressOf(to)
  const destination = address === '' ? packet.destination : address
  return { ...packet, destination, port: Number(to.slice(to.lastIndexOf(':') + 1)), isDnated: true }
}

const targetWords: Readonly<Record<string, string>> = {
  ACCEPT: 'let through',
  DROP: 'dropped, and the sender gets no answer',
  REJECT: 'refused, and the sender is told',
  NFLOG: 'the proxy is told, which counts it',
  MARK: 'marked for a later rule',
  MASQUERADE: 'the source becomes an address of this node, so that answers come back through it',
}

function whyOf(spec: RuleSpec, probability: number, place: Place): string {
  const comment = commentOf(spec)
  const share = probability < 1 ? `, for ${(probability * 100).toFixed(1)} % of connections` : ''
  return `${comment === '' ? '' : `${comment}: `}${actionOf(spec, place)}${share}`
}

function actionOf({ jump: target = '', jumpArgs = [] }: RuleSpec, { name }: Place): string {
  const [option, to = ''] = jumpArgs
  if (target === 'REDIRECT' || (target === 'DNAT' && isPortalChain(name))) {
    return `handed to a listener of this node, port ${to.slice(to.lastIndexOf(':') + 1)}`
  }
  if (target === 'DNAT') return `the destination becomes ${to}`
  if (target === 'MARK' && option === '--xor-mark') return 'the mark is removed'
  return targetWords[target] ?? `on to chain ${target}`
}
