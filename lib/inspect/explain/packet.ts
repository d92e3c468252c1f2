import { placeText, type Item, type Place } from '../../kernel/place.js'
import { hostPort, type IpFamily } from '../../state/ip.js'
import type { Protocol } from '../../state/names.js'

/** The first packet of a connection, as it is at one point of its way. A value. */
export interface Packet {
  readonly family: IpFamily
  readonly protocol: Protocol
  readonly source: string
  readonly destination: string
  readonly port: number
  /** The interface it came in on; undefined for packets of the node itself. */
  readonly inInterface: string | undefined
  /** It is sent by a socket of this node or of one of its pods; ebpf mode translates there. */
  readonly isSocketHere?: boolean
  readonly mark: number
  /** Whether its destination was rewritten; the kernel then rewrites the answers, too. */
  readonly isDnated: boolean
  readonly isMasqueraded: boolean
  /**
   * The packet is masqueraded if sender and endpoint are pods of one bridge. Rules and objects do
   * not tell which pods are.
   */
  readonly isHiddenOnBridge?: 'always' | 'if filtered'
}

/** One thing that happened to the packet, and why. */
export interface Hop {
  /**
   * The chains on the way to this hop, the built-in one first; or the virtual server or listener.
   */
  readonly path: readonly Place[]
  /** The item of the plan that does it; undefined if this is not done in the kernel. */
  readonly item?: Item
  /** The rule as the kernel's tool prints it; empty where there is none, as in a listener. */
  readonly rule: string
  /** One plain sentence. */
  readonly why: string
  /** The chain that the rule jumps to. */
  readonly into?: Place
  /** How the kernel differs from the plan; only if the kernel was asked. */
  readonly notes?: readonly string[]
}

/** The place of a hop, for people: `nat PREROUTING > KUBE-SERVICES`. */
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
  /** Jumps into chains where nothing happened to the packet; the kernel counts them, too. */
  readonly idle?: readonly Hop[]
  /** The number of rules that the kernel compares the packet with, whether they match or not. */
  readonly rules: number
  /** The number of chains with rules that the packet enters. */
  readonly chains: number
  /** The packet at the end of the way. */
  readonly packet: Packet
  readonly end: WayEnd
  /**
   * The endpoint is on another node and sees the client's own address. It answers the client
   * directly, from an address that the client does not expect (IP25).
   */
  readonly isAnsweredPast?: true
}

/** Where a way ends: `ip:port`, or `[ip]:port`. */
export function endOf({ packet }: Way): string {
  return hostPort(packet.destination, packet.port)
}

/**
 * - `sent`: leaves for `packet.destination`
 * - `local`: taken by a socket of this node
 * - `dropped`, `rejected`: by the last hop
 */
export type WayEnd = 'sent' | 'local' | 'dropped' | 'rejected'

/** Facts about the node that the kernel uses besides its rules. */
export interface NodeSurroundings {
  readonly localAddresses: ReadonlySet<string>
  /** By kernel name; rules of ipvs mode look them up. */
  readonly ipSets?: ReadonlyMap<string, IpSetContent>
  /** Tells what of a plan the kernel lacks, so that no packet meets it; undefined: nothing. */
  readonly lacks?: Lacks | undefined
}

/** Whether the kernel lacks an item of the plan, or a whole place of it. */
export type Lacks = (item: Pick<Item, 'place'> & Partial<Item>) => boolean

/** Whether the kernel of the node has an item, or a whole place. */
export function holds({ lacks }: NodeSurroundings, item: Parameters<Lacks>[0]): boolean {
  return lacks === undefined || !lacks(item)
}

export interface IpSetContent {
  /** Such as `hash:ip,port`. */
  readonly type: string
  readonly members: ReadonlySet<string>
}
