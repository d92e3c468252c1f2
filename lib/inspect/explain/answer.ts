import { endpointReasons, type EndpointReason } from './endpoint-reasons.js'
import { explainPacket } from './explain.js'
import { whereText, type Hop, type Packet, type Way } from './packet.js'
import { verdictOf, type Explanation } from './text.js'
import { leadsBack } from './listeners.js'
import type { EndpointSliceObject } from '../../state/objects.js'
import { isProxyMode, type Config, type ModeName } from '../../config/config.js'
import type { Question } from './question.js'

interface AskedNode {
  readonly mode: ModeName
  readonly config: Config
  readonly nodeName: string
  readonly zone: string | undefined
  readonly slicesOf: (namespace: string, name: string) => readonly EndpointSliceObject[]
}

/** Explains from objects and settings alone. The kernel is not asked. */
export function explainQuestion(question: Question, node: AskedNode): Explanation {
  const { state, service, packet } = question
  const { mode, config, slicesOf, nodeName, zone } = node
  const endpoints = service
    ? endpointReasons(service, {
        family: state.family,
        slices: slicesOf(service.name.namespace, service.name.name),
        leadsBack: isProxyMode(mode) ? leadsBack(state, service.protocol) : () => false,
        ...{ nodeName, zone, mode, config },
      })
    : []
  const ways = explainPacket(mode, state, config, packet)
  return { mode, ways, endpoints, live: undefined, notAsked: '' }
}

/** An explanation as data. */
export interface Answer {
  readonly mode: ModeName
  /** The sender, in words. */
  readonly sender: string
  /**
   * `namespace/name:port` of the Service; undefined if the target is not an address of a Service.
   */
  readonly service: string | undefined
  /** The first packet of the connection, as it was sent. */
  readonly packet: Packet
  /** Every endpoint that the objects name for the Service, and why it is used or not. */
  readonly endpoints: readonly EndpointReason[]
  /** What may happen to the packet; the probabilities add up to 1. */
  readonly ways: readonly JudgedWay[]
}

/** A way with its places as text. */
export interface JudgedWay extends Omit<Way, 'hops'> {
  readonly hops: readonly PlainHop[]
  /** How the way ends, in one sentence. */
  readonly verdict: string
}

/** One thing that happened to the packet, and why. */
export interface PlainHop extends Pick<Hop, 'rule' | 'why' | 'notes'> {
  /** Hook, table and chain, such as `nat PREROUTING > KUBE-SERVICES`. */
  readonly where: string
  /** The chain that the rule jumps to. */
  readonly into?: string
}

export function answerOf(
  { packet, sender, service }: Question,
  { mode, ways, endpoints }: Explanation,
): Answer {
  const portName = service?.portName
  return { mode, sender, service: portName, packet, endpoints, ways: judged(ways) }
}

export function judged(ways: readonly Way[]): readonly JudgedWay[] {
  return ways.map((way) => ({ ...way, hops: way.hops.map(plainHop), verdict: verdictOf(way) }))
}

function plainHop({ path, rule, why, into, notes }: Hop): PlainHop {
  const where = whereText(path)
  return { where, rule, why, ...(into ? { into: into.name } : {}), ...(notes ? { notes } : {}) }
}
