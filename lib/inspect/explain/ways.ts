import { isSamePlace } from '../../kernel/place.js'
import type { Hop, Packet, Way, WayEnd } from './packet.js'

/** A packet at one point of one of its possible ways. */
export interface Branch {
  readonly probability: number
  readonly packet: Packet
  readonly hops: readonly Hop[]
  /** As in `Way`. */
  readonly rules: number
  readonly chains: number
  /** Set when no more rules can change the packet. */
  readonly end: WayEnd | undefined
}

export function start(packet: Packet): readonly Branch[] {
  return [{ probability: 1, packet, hops: [], rules: 0, chains: 0, end: undefined }]
}

/** Moves every unfinished branch through a part of the kernel. */
export function through(
  branches: readonly Branch[],
  part: (branch: Branch) => readonly Branch[],
): readonly Branch[] {
  return branches.flatMap((branch) => (branch.end === undefined ? part(branch) : [branch]))
}

/** The result of a rule or a chain. */
export interface Passed {
  readonly branch: Branch
  /** The base chain has decided; otherwise the next rule or the calling chain continues. */
  readonly isDecided: boolean
  /** The rule returns to the calling chain. */
  readonly returns?: true
}

/**
 * Moves a packet through the rules of a chain, and counts them. A chain without rules is not
 * counted.
 */
export function throughChain<Rule>(
  entered: Branch,
  rules: readonly Rule[],
  apply: (branch: Branch, rule: Rule) => readonly Passed[],
): readonly Passed[] {
  if (rules.length === 0) return [{ branch: entered, isDecided: false }]
  let open: readonly Branch[] = [{ ...entered, chains: entered.chains + 1 }]
  const left: Passed[] = []
  for (const rule of rules) {
    const next: Branch[] = []
    for (const each of open) {
      for (const passed of apply({ ...each, rules: each.rules + 1 }, rule)) {
        const { branch, isDecided, returns } = passed
        if (isDecided || returns || branch.end !== undefined) left.push({ branch, isDecided })
        else next.push(branch)
      }
    }
    open = next
  }
  return [...left, ...open.map((branch) => ({ branch, isDecided: false }))]
}

export function withHop(branch: Branch, hop: Hop, change: Partial<Branch> = {}): Branch {
  return { ...branch, ...change, hops: [...branch.hops, hop] }
}

/** Ends the walk. A packet that no rule stopped arrives at its destination. */
export function finish(branches: readonly Branch[], isLocal: (packet: Packet) => boolean): Way[] {
  return branches.map(({ hops, end, ...branch }) => ({
    ...branch,
    hops: hops.filter((hop, index) => !isIdle(hop, hops[index + 1])),
    idle: hops.filter((hop, index) => isIdle(hop, hops[index + 1])),
    end: end ?? (isLocal(branch.packet) ? 'local' : 'sent'),
  }))
}

/** A jump into a chain where nothing happened to this packet. */
function isIdle({ path, into }: Hop, next: Hop | undefined): boolean {
  if (into === undefined) return false
  return ![...path, into].every((place, index) => isSamePlace(place, next?.path[index]))
}
