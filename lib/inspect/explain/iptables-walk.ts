import { isLocal, parseRule, type ParsedRule } from './iptables-rule.js'
import { finish, start, through, withHop, type Branch } from './ways.js'
import type { NodeSurroundings, Packet, Way } from './packet.js'

/** Rules by `table CHAIN`, built-in chains included, each rule as iptables prints it. */
export type IptablesRuleset = ReadonlyMap<string, readonly string[]>

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

/** What a chain said: nothing, so the caller goes on, or enough for this table. */
interface Passed {
  readonly branch: Branch
  readonly isDecided: boolean
}

/** Leads packets through chains; a mode says through which, and in which order. */
export class IptablesWalker {
  readonly #rules: IptablesRuleset
  readonly #node: NodeSurroundings
  readonly #parsed = new Map<string, readonly ParsedRule[]>()

  constructor(rules: IptablesRuleset, node: NodeSurroundings) {
    this.#rules = rules
    this.#node = node
  }

  table(branches: readonly Branch[], table: string, chain: string): readonly Branch[] {
    return through(branches, (branch) =>
      this.#chain(branch, table, chain, `${table} ${chain}`).map((passed) => passed.branch),
    )
  }

  #chain(branch: Branch, table: string, chain: string, where: string): readonly Passed[] {
    let open: readonly Branch[] = [branch]
    const decided: Passed[] = []
    for (const rule of this.#rulesOf(table, chain)) {
      const next: Branch[] = []
      for (const current of open) {
        if (!rule.tests.every((test) => test(current.packet, this.#node))) {
          next.push(current)
          continue
        }
        if (rule.probability < 1) {
          next.push({ ...current, probability: current.probability * (1 - rule.probability) })
        }
        const share = { ...current, probability: current.probability * rule.probability }
        for (const passed of this.#act(share, rule, table, where)) {
          if (passed === 'return') decided.push({ branch: share, isDecided: false })
          else if (passed.isDecided || passed.branch.end !== undefined) decided.push(passed)
          else next.push(passed.branch)
        }
      }
      open = next
    }
    return [...decided, ...open.map((rest) => ({ branch: rest, isDecided: false }))]
  }

  #act(
    branch: Branch,
    rule: ParsedRule,
    table: string,
    where: string,
  ): readonly (Passed | 'return')[] {
    const { target, targetArgs, text } = rule
    const { packet } = branch
    const hop = { where, rule: text, why: whyOf(rule) }
    const done = (change: Partial<Branch>, isDecided: boolean): Passed[] => [
      { branch: withHop(branch, hop, change), isDecided },
    ]
    switch (target) {
      case '':
        return [{ branch, isDecided: false }]
      case 'RETURN':
        return ['return']
      case 'ACCEPT':
        return done({}, true)
      case 'DROP':
        return done({ end: 'dropped' }, true)
      case 'REJECT':
        return done({ end: 'rejected' }, true)
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
        const inside = withHop(branch, { ...hop, into: target })
        return this.#chain(inside, table, target, `${where} > ${target}`)
      }
    }
  }

  #rulesOf(table: string, chain: string): readonly ParsedRule[] {
    const key = `${table} ${chain}`
    let parsed = this.#parsed.get(key)
    if (!parsed) {
      parsed = (this.#rules.get(key) ?? []).map(parseRule)
      this.#parsed.set(key, parsed)
    }
    return parsed
  }
}

function changedMark(mark: number, [option, value]: readonly string[]): number {
  const bits = Number(value)
  return (option === '--xor-mark' ? mark ^ bits : mark | bits) >>> 0
}

/** `10.0.0.1:80`, `[fd00::1]:80`, or `:80` where only the port changes. */
function redirected(packet: Packet, to: string): Packet {
  const colon = to.lastIndexOf(':')
  const address = to.slice(0, colon).replace(/^\[|\]$/g, '')
  const destination = address === '' ? packet.destination : address
  return { ...packet, destination, port: Number(to.slice(colon + 1)), isDnated: true }
}

const targetWords: Readonly<Record<string, string>> = {
  ACCEPT: 'let through',
  DROP: 'thrown away without a word',
  REJECT: 'refused, and the sender is told',
  MARK: 'marked, for a rule further on',
  MASQUERADE: 'the source becomes an address of this node, so that answers come back through it',
  DNAT: 'the destination becomes',
  REDIRECT: 'handed to a listener of this node, port',
}

function whyOf({ comment, target, targetArgs, probability }: ParsedRule): string {
  const words = targetWords[target]
  const value = target === 'DNAT' || target === 'REDIRECT' ? ` ${targetArgs[1] ?? ''}` : ''
  const action = words === undefined ? `on to chain ${target}` : `${words}${value}`
  const share = probability < 1 ? `, for ${(probability * 100).toFixed(1)} % of connections` : ''
  return `${comment === '' ? '' : `${comment}: `}${action}${share}`
}
