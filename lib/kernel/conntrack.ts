import { setImmediate } from 'node:timers/promises'
import { KernelError } from '../errors.js'
import type { IpFamily } from '../state/ip.js'
import { protocolNumbers, type ProtocolName } from './addresses.js'
import {
  flowHeader,
  flowHeaderBytes,
  flowMessage,
  flowStatus,
  flowTuple,
  protocolPart,
  tuplePart,
} from './conntrack-tuple.js'
import { FlowMessage, type TrackedFlow } from './flow-message.js'
import { openChannel } from './netlink/channel.js'
import { kernelErrorOf } from './netlink/failure.js'
import { attributesOf } from './netlink/message-reader.js'
import { MessageWriter } from './netlink/message-writer.js'
import { flags, protocols } from './netlink/protocol.js'

/** One flow that the kernel tracks: which Service it went to, and who answers. */
export interface ServiceFlow {
  readonly family: IpFamily
  /** The address that the client sent to, as `ip:port` or `[ip]:port`. */
  readonly destination: string
  /** The address that answers, in the same form: the endpoint after DNAT, else the destination. */
  readonly answeredBy: string
}

/** The kernel identifies a flow by its original tuple, which is not decoded, and its zone. */
interface ListedFlow extends ServiceFlow {
  readonly isOpen: boolean
  readonly status: number
  readonly tuple: Buffer
  readonly zone: Buffer | undefined
}

interface FlowCleanup {
  readonly deleted: number
  /** Flows left for the next time, because the budget was spent. */
  readonly left: number
}

const attribute = {
  ...flowTuple,
  ...{ protocolState: 4, timeout: 7, zone: 18, filter: 25, statusMask: 26 },
}
/** Attributes of the state of a TCP connection, and values of two of them. */
const tcp = {
  ...{ nested: 1, state: 1, originalFlags: 4, replyFlags: 5 },
  ...{ established: 3, isLiberal: 0x08 },
}
/** Until the next packet, with which the kernel's own time begins: a day, as kube-proxy sets it. */
const openSeconds = 86_400
const filter = { originalFlags: 1, matchesProtocol: 1 << 3 }

/** Few enough that all answers fit the socket's buffer, even if each is an error. */
const changesAtOnce = 100

interface Deletion {
  readonly protocol: ProtocolName
  /** Only attempts to connect that nobody has answered: no packet has come back. */
  readonly isUnanswered?: boolean
  readonly isStale: (flow: ServiceFlow) => boolean
  /**
   * Whether the TCP connection of a stale flow is open all the same; `client` is an `ip:port`. Such a
   * flow is not deleted. The kernel is told that the connection is open.
   */
  readonly isOpen?: (client: string, flow: ServiceFlow) => boolean
  /**
   * After this time the rest is left for the next call. No limit by default: most callers do not
   * come back for what is left.
   */
  readonly budgetMs?: number | undefined
}

/** The kernel's table of tracked connections, over ctnetlink. */
export class Conntrack {
  readonly #channel = openChannel(protocols.netfilter, { receiveBufferBytes: 1 << 20 })

  /**
   * The flows to delete. Kernels since 5.8 filter by protocol themselves; from older ones all flows
   * come, and those of other protocols are dropped here.
   */
  #list(family: IpFamily, deletion: Deletion): Promise<readonly ListedFlow[]> {
    const { isStale, isUnanswered = false } = deletion
    const protocol = protocolNumbers[deletion.protocol]
    const message = new FlowMessage()
    const request = new MessageWriter(128).message(flowMessage.get, flags.dump, (writer) => {
      writer
        .fixed(flowHeader(family))
        .nest(attribute.original, (original) =>
          original.nest(tuplePart.protocol, (part) => part.u8(protocolPart.number, protocol)),
        )
        .nest(attribute.filter, (part) => part.u32(filter.originalFlags, filter.matchesProtocol))
      // Kernels since 5.15 filter by the status themselves, so the list of a busy node is short.
      if (isUnanswered) {
        writer.be32(flowStatus.attribute, 0).be32(attribute.statusMask, flowStatus.isAnswered)
      }
    })
    return this.#channel.dump(request, {
      action: `list tracked ${family} connections`,
      parse: ({ payload }) => {
        if (!message.read(payload, 0, payload.length) || message.protocol !== protocol)
          return undefined
        const flow = { family, destination: message.destination, answeredBy: message.endpoint }
        if (!isStale(flow)) return undefined
        const isOpen = deletion.isOpen?.(message.client, flow) ?? false
        return listed({ ...flow, isOpen }, payload, isUnanswered)
      },
    })
  }

  /**
   * Deletes the flows for which `isStale` holds. Other work runs between the batches. Flows gone
   * meanwhile do not count. The next packet of a TCP connection counts as one of a new connection.
   */
  async delete(family: IpFamily, deletion: Deletion): Promise<FlowCleanup> {
    const { budgetMs = Infinity } = deletion
    const found = await this.#list(family, deletion)
    const open = found.filter(({ isOpen }) => isOpen)
    const stale = found.filter(({ isOpen }) => !isOpen)
    for (let at = 0; at < open.length; at += changesAtOnce) {
      this.#change(family, flowMessage.change, open.slice(at, at + changesAtOnce))
    }
    const started = performance.now()
    let deleted = 0
    let tried = 0
    while (tried < stale.length && (tried === 0 || performance.now() - started < budgetMs)) {
      const batch = stale.slice(tried, tried + changesAtOnce)
      deleted += this.#change(family, flowMessage.delete, batch)
      tried += batch.length
      await setImmediate()
    }
    return { deleted, left: stale.length - tried }
  }

  close(): void {
    this.#channel.close()
  }

  /** Deletes flows, or notes them as open. Returns how many there still were. */
  #change(family: IpFamily, message: number, flows: readonly ListedFlow[]): number {
    const writer = new MessageWriter()
    for (const flow of flows) {
      writer.message(message, flags.ack, (part) => {
        part
          .fixed(flowHeader(family))
          .nest(attribute.original, (original) => original.fixed(flow.tuple))
        if (flow.zone) part.bytes(attribute.zone, flow.zone)
        if (message === flowMessage.change) writeOpen(part, flow)
      })
    }
    const answer = this.#channel.transact(writer)
    const action = message === flowMessage.delete ? 'delete' : 'keep'
    for (const [index, failure] of answer.failures) {
      const error = kernelErrorOf(failure, `${action} flow to ${flows[index]?.destination ?? '?'}`)
      if (error.kind !== 'not-found') throw error
    }
    if (answer.overrun) throw new KernelError('busy', 'change tracked flows: answers were lost')
    return answer.acknowledged
  }
}

/**
 * The parts that make a flow one of an open TCP connection. The kernel has seen no answer, so it
 * knows no window of the connection and is told to check none.
 */
function writeOpen(writer: MessageWriter, { status }: ListedFlow): void {
  const flagsOfBoth = Uint8Array.of(tcp.isLiberal, tcp.isLiberal)
  writer
    .be32(flowStatus.attribute, status | flowStatus.isAnswered | flowStatus.isAssured)
    .be32(attribute.timeout, openSeconds)
    .nest(attribute.protocolState, (state) =>
      state.nest(tcp.nested, (part) =>
        part
          .u8(tcp.state, tcp.established)
          .bytes(tcp.originalFlags, flagsOfBoth)
          .bytes(tcp.replyFlags, flagsOfBoth),
      ),
    )
}

/** Undefined for a flow with an answer, if only others are asked for. */
function listed(
  flow: ServiceFlow & Pick<ListedFlow, 'isOpen'>,
  payload: Buffer,
  isUnanswered: boolean,
): ListedFlow | undefined {
  const attributes = attributesOf(payload, flowHeaderBytes)
  const status = attributes.get(flowStatus.attribute)?.readUInt32BE(0) ?? 0
  if (isUnanswered && (status & flowStatus.isAnswered) !== 0) return undefined
  const tuple = attributes.get(attribute.original)
  const zone = attributes.get(attribute.zone)
  // The payload belongs to the socket; what outlives this call is copied.
  return tuple && { ...flow, status, tuple: Buffer.from(tuple), zone: zone && Buffer.from(zone) }
}

/** Every TCP, UDP and SCTP connection of a family in this network namespace. Reads only. */
export async function listTrackedFlows(family: IpFamily): Promise<readonly TrackedFlow[]> {
  const flows: TrackedFlow[] = []
  await visitTrackedFlows(family, (flow) => flows.push(flow.tracked()))
  return flows
}

/** Visits the same connections one by one; `visit` gets a view that the next message overwrites. */
export async function visitTrackedFlows(
  family: IpFamily,
  visit: (flow: FlowMessage) => void,
): Promise<void> {
  const flow = new FlowMessage()
  const channel = openChannel(protocols.netfilter, { receiveBufferBytes: 1 << 20 })
  try {
    const request = new MessageWriter(64).message(flowMessage.get, flags.dump, (writer) =>
      writer.fixed(flowHeader(family)),
    )
    await channel.dump(request, {
      action: `list tracked ${family} connections`,
      parse: ({ payload }) => {
        if (flow.read(payload, 0, payload.length)) visit(flow)
        return undefined
      },
    })
  } finally {
    channel.close()
  }
}
