import { placeText, type Item, type Place } from '../../kernel/place.js'
import type { IpFamily } from '../../state/ip.js'
import type { Protocol } from '../../state/names.js'

/** The modes whose rules can be walked. Named here, as the registry of modes loads the modes. */
export const explainedModes = ['userspace', 'iptables', 'ipvs', 'nftables'] as const

export type ExplainedMode = (typeof explainedModes)[number]

/** The first packet of a connection, as it is at one point of its way. A value. */
export interface Packet {
  readonly family: IpFamily
  readonly protocol: Protocol
  readonly source: string
  readonly destination: string
  readonly port: number
  /** The interface it came in by; undefined for packets of the node itself. */
  readonly inInterface: string | undefined
  readonly mark: number
  /** Its destination was changed, so the kernel will change answers back. */
  readonly isDnated: boolean
  readonly isMasqueraded: boolean
}

/** One thing that happened to the packet, and why. */
export interface Hop {
  /** The chains that led here, the kernel's own first; or the one virtual server or listener. */
  readonly path: readonly Place[]
  /** The item of the plan that does it; undefined where none of the kernel does. */
  readonly item?: Item
  /** The rule as the kernel's tool prints it; empty where there is none, as in a listener. */
  readonly rule: string
  /** One plain sentence. */
  readonly why: string
  /** The chain it leads into. */
  readonly into?: Place
  /** How the kernel differs from it, where it was asked. */
  readonly notes?: readonly string[]
}

/** Where a hop is, for people: `nat PREROUTING > KUBE-SERVICES`. */
export function whereText(path: readonly Place[]): string {
  const [first] = path
  if (first?.kind === 'virtual server') return 'IPVS'
  if (first?.kind === 'listeners') return 'listener of this process'
  if (first?.kind !== 'chain') return first ? placeText(first) : ''
  const names = path.map(({ name }) => name).join(' > ')
  return first.table === undefined ? names : `${first.table} ${names}`
}

/** One way the packet may go; all probabilities of an explanation add up to 1. */
export interface Way {
  readonly probability: number
  readonly hops: readonly Hop[]
  /** The packet as it leaves, or as it was when it ended. */
  readonly packet: Packet
  readonly end: WayEnd
  /**
   * The endpoint is on another node and sees a stranger, so it answers past this node, from an
   * address the stranger never asked (IP25).
   */
  readonly isAnsweredPast?: true
}

/**
 * - `sent`: leaves for `packet.destination`
 * - `local`: taken by a socket of this node
 * - `dropped`, `rejected`: by the last hop
 */
export type WayEnd = 'sent' | 'local' | 'dropped' | 'rejected'

/** What of the node the kernel asks while it walks: routing, not rules. */
export interface NodeSurroundings {
  readonly localAddresses: ReadonlySet<string>
  /** By kernel name; rules of ipvs mode ask them. */
  readonly ipSets?: ReadonlyMap<string, IpSetContent>
}

export interface IpSetContent {
  /** Such as `hash:ip,port`. */
  readonly type: string
  readonly members: ReadonlySet<string>
}
