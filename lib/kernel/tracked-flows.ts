import { addressText, protocolNumbers } from './addresses.js'
import {
  flowHeader,
  flowHeaderBytes,
  flowMessage,
  flowTuple,
  readTuple,
  type Tuple,
  type TupleEnd,
} from './conntrack-tuple.js'
import { openChannel } from './netlink/channel.js'
import { FlowMessage } from './flow-message.js'
import { forEachAttribute, type Message } from './netlink/message-reader.js'
import { MessageWriter } from './netlink/message-writer.js'
import { flags, protocols } from './netlink/protocol.js'
import type { IpFamily } from '../state/ip.js'

/** One connection the kernel tracks: whom the client asked, who answers, and to whom. */
export interface TrackedFlow {
  readonly protocol: 'TCP' | 'UDP' | 'SCTP'
  readonly source: FlowEnd
  readonly destination: FlowEnd
  /** The endpoint after DNAT, or the destination itself without. */
  readonly answeredBy: FlowEnd
  /** The client, or an address of this node after masquerading. */
  readonly answeredTo: FlowEnd
  /** Both directions; undefined unless the kernel counts (`net.netfilter.nf_conntrack_acct`). */
  readonly bytes: { readonly toEndpoint: number; readonly toClient: number } | undefined
}

export interface FlowEnd {
  readonly ip: string
  readonly port: number
}

const attribute = { ...flowTuple, originalCounters: 9, replyCounters: 10 }
const counterBytes = 2

/** Every TCP, UDP and SCTP connection of a family in this network namespace. Reads only. */
export function listTrackedFlows(family: IpFamily): Promise<readonly TrackedFlow[]> {
  return dumpFlows(family, ({ payload }) => parseFlow(family, payload))
}

/** The same, message by message; `visit` is given a view that the next message overwrites. */
export async function visitTrackedFlows(
  family: IpFamily,
  visit: (flow: FlowMessage) => void,
): Promise<void> {
  const flow = new FlowMessage()
  await dumpFlows(family, ({ payload }) => {
    if (flow.read(payload, 0, payload.length)) visit(flow)
    return undefined
  })
}

async function dumpFlows<T>(
  family: IpFamily,
  parse: (message: Message) => T | undefined,
): Promise<readonly T[]> {
  const channel = openChannel(protocols.netfilter, { receiveBufferBytes: 1 << 20 })
  try {
    const request = new MessageWriter(64).message(flowMessage.get, flags.dump, (writer) =>
      writer.fixed(flowHeader(family)),
    )
    return await channel.dump(request, { action: `list tracked ${family} connections`, parse })
  } finally {
    channel.close()
  }
}

function parseFlow(family: IpFamily, payload: Buffer): TrackedFlow | undefined {
  let original: Tuple | undefined
  let reply: Tuple | undefined
  let toEndpoint: number | undefined
  let toClient: number | undefined
  forEachAttribute(payload, flowHeaderBytes, (type, start, end) => {
    if (type === attribute.original) original = readTuple(family, payload, start, end)
    else if (type === attribute.reply) reply = readTuple(family, payload, start, end)
    else if (type === attribute.originalCounters) toEndpoint = bytesIn(payload, start, end)
    else if (type === attribute.replyCounters) toClient = bytesIn(payload, start, end)
  })
  if (!original || !reply) return undefined
  const number = original.protocol
  const protocol = names.find((name) => protocolNumbers[name] === number)
  if (!protocol) return undefined
  const endOf = ({ at, port }: TupleEnd): FlowEnd => ({
    ip: at === undefined ? '' : addressText(family, payload, at),
    port: port ?? 0,
  })
  return {
    protocol,
    source: endOf(original.source),
    destination: endOf(original.destination),
    answeredBy: endOf(reply.source),
    answeredTo: endOf(reply.destination),
    bytes:
      toEndpoint === undefined || toClient === undefined ? undefined : { toEndpoint, toClient },
  }
}

const names = ['TCP', 'UDP', 'SCTP'] as const

function bytesIn(payload: Buffer, start: number, end: number): number | undefined {
  let bytes: number | undefined
  const visit = (type: number, from: number) => {
    if (type === counterBytes) bytes = Number(payload.readBigUInt64BE(from))
  }
  forEachAttribute(payload, start, visit, end)
  return bytes
}
