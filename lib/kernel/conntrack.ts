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
  readonly tuple: Buffer
  readonly zone: Buffer | undefined
}

interface FlowCleanup {
  readonly deleted: number
  /** Flows left for the next time, because the budget was spent. */
  readonly left: number
}

const attribute = { ...flowTuple, zone: 18, filter: 25, statusMask: 26 }
const filter = { originalFlags: 1, matchesProtocol: 1 << 3 }

/** Few enough that all answers fit the socket's buffer, even if each is an error. */
const deletesAtOnce = 100

interface Deletion {
  readonly protocol: ProtocolName
  /** Only attempts to connect that nobody has answered: no packet has come back. */
  readonly isUnanswered?: boolean
  readonly isStale: (flow: ServiceFlow) => boolean
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
        return isStale(flow) ? listed(flow, payload, isUnanswered) : undefined
      },
    })
  }

  /**
   * Deletes the flows for which `isStale` holds. Other work runs between the batches. Flows gone
   * meanwhile do not count. The next packet of a TCP connection counts as one of a new connection.
   */
  async delete(family: IpFamily, deletion: Deletion): Promise<FlowCleanup> {
    const { budgetMs = Infinity } = deletion
    const stale = await this.#list(family, deletion)
    const started = performance.now()
    let deleted = 0
    let tried = 0
    while (tried < stale.length && (tried === 0 || performance.now() - started < budgetMs)) {
      const batch = stale.slice(tried, tried + deletesAtOnce)
      deleted += this.#deleteBatch(family, batch)
      tried += batch.length
      await setImmediate()
    }
    return { deleted, left: stale.length - tried }
  }

  close(): void {
    this.#channel.close()
  }

  #deleteBatch(family: IpFamily, flows: readonly ListedFlow[]): number {
    const writer = new MessageWriter()
    for (const flow of flows) {
      writer.message(flowMessage.delete, flags.ack, (part) => {
        part
          .fixed(flowHeader(family))
          .nest(attribute.original, (original) => original.fixed(flow.tuple))
        if (flow.zone) part.bytes(attribute.zone, flow.zone)
      })
    }
    const answer = this.#channel.transact(writer)
    for (const [index, failure] of answer.failures) {
      const error = kernelErrorOf(failure, `delete flow to ${flows[index]?.destination ?? '?'}`)
      if (error.kind !== 'not-found') throw error
    }
    if (answer.overrun) throw new KernelError('busy', 'delete stale flows: answers were lost')
    return answer.acknowledged
  }
}

/** Undefined for a flow with an answer, if only others are asked for. */
function listed(flow: ServiceFlow, payload: Buffer, isUnanswered: boolean): ListedFlow | undefined {
  const attributes = attributesOf(payload, flowHeaderBytes)
  const status = attributes.get(flowStatus.attribute)?.readUInt32BE(0) ?? 0
  if (isUnanswered && (status & flowStatus.isAnswered) !== 0) return undefined
  const tuple = attributes.get(attribute.original)
  const zone = attributes.get(attribute.zone)
  // The payload belongs to the socket; what outlives this call is copied.
  return tuple && { ...flow, tuple: Buffer.from(tuple), zone: zone && Buffer.from(zone) }
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
