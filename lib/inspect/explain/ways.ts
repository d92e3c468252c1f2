import { isSamePlace } from '../../kernel/place.js'
import type { Hop, Packet, Way, WayEnd } from './packet.js'

/** A walk under way: where a packet may be by now, each with its share. */
export interface Branch {
  readonly probability: number
  readonly packet: Packet
  readonly hops: readonly Hop[]
  /** Set once nothing more can happen to it. */
  readonly end: WayEnd | undefined
}

export function start(packet: Packet): readonly Branch[] {
  return [{ probability: 1, packet, hops: [], end: undefined }]
}

/** Moves every branch that is still under way through a part of the kernel. */
export function through(
  branches: readonly Branch[],
  part: (branch: Branch) => readonly Branch[],
): readonly Branch[] {
  return branches.flatMap((branch) => (branch.end === undefined ? part(branch) : [branch]))
}

export function withHop(branch: Branch, hop: Hop, change: Partial<Branch> = {}): Branch {
  return { ...branch, ...change, hops: [...branch.hops, hop] }
}

/** The finished walk. A packet that nothing stopped arrives at its destination. */
export function finish(branches: readonly Branch[], isLocal: (packet: Packet) => boolean): Way[] {
  return branches.map(({ probability, packet, hops, end }) => ({
    probability,
    packet,
    hops: hops.filter((hop, index) => !isIdle(hop, hops[index + 1])),
    end: end ?? (isLocal(packet) ? 'local' : 'sent'),
  }))
}

/** A jump into a chain where nothing happened to this packet. */
function isIdle({ path, into }: Hop, next: Hop | undefined): boolean {
  if (into === undefined) return false
  return ![...path, into].every((place, index) => isSamePlace(place, next?.path[index]))
}
