import { addressFamilies, addressText, protocolNumbers } from './addresses.js'
import { openChannel } from './netlink/channel.js'
import { forEachAttribute } from './netlink/message-reader.js'
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

const subsystem = 1 << 8
const getMessage = subsystem | 1
const attribute = { original: 1, reply: 2, originalCounters: 9, replyCounters: 10 }
const tuple = { ip: 1, protocol: 2 }
const part = { number: 1, sourcePort: 2, destinationPort: 3 }
const addressPart = {
  IPv4: { source: 1, destination: 2 },
  IPv6: { source: 3, destination: 4 },
} as const
const counterBytes = 2
const headerBytes = 4

/** Every TCP, UDP and SCTP connection of a family in this network namespace. Reads only. */
export async function listTrackedFlows(family: IpFamily): Promise<readonly TrackedFlow[]> {
  const channel = openChannel(protocols.netfilter, { receiveBufferBytes: 1 << 20 })
  try {
    const request = new MessageWriter(64).message(getMessage, flags.dump, (writer) =>
      writer.fixed(Uint8Array.of(addressFamilies[family], 0, 0, 0)),
    )
    return await channel.dump(request, {
      action: `list tracked ${family} connections`,
      parse: ({ payload }) => parseFlow(family, payload),
    })
  } finally {
    channel.close()
  }
}

interface Side {
  protocol: number
  source: FlowEnd
  destination: FlowEnd
}

function parseFlow(family: IpFamily, payload: Buffer): TrackedFlow | undefined {
  let original: Side | undefined
  let reply: Side | undefined
  let toEndpoint: number | undefined
  let toClient: number | undefined
  forEachAttribute(payload, headerBytes, (type, start, end) => {
    if (type === attribute.original) original = parseSide(family, payload, start, end)
    else if (type === attribute.reply) reply = parseSide(family, payload, start, end)
    else if (type === attribute.originalCounters) toEndpoint = bytesIn(payload, start, end)
    else if (type === attribute.replyCounters) toClient = bytesIn(payload, start, end)
  })
  if (!original || !reply) return undefined
  const number = original.protocol
  const protocol = names.find((name) => protocolNumbers[name] === number)
  if (!protocol) return undefined
  return {
    protocol,
    source: original.source,
    destination: original.destination,
    answeredBy: reply.source,
    answeredTo: reply.destination,
    bytes:
      toEndpoint === undefined || toClient === undefined ? undefined : { toEndpoint, toClient },
  }
}

const names = ['TCP', 'UDP', 'SCTP'] as const

function parseSide(family: IpFamily, payload: Buffer, start: number, end: number): Side {
  const source = { ip: '', port: 0 }
  const destination = { ip: '', port: 0 }
  let protocol = 0
  const visitIp = (type: number, from: number) => {
    if (type === addressPart[family].source) source.ip = addressText(family, payload, from)
    else if (type === addressPart[family].destination) {
      destination.ip = addressText(family, payload, from)
    }
  }
  const visitProtocol = (type: number, from: number) => {
    if (type === part.number) protocol = payload[from] ?? 0
    else if (type === part.sourcePort) source.port = payload.readUInt16BE(from)
    else if (type === part.destinationPort) destination.port = payload.readUInt16BE(from)
  }
  const visit = (type: number, from: number, to: number) => {
    if (type === tuple.ip) forEachAttribute(payload, from, visitIp, to)
    else if (type === tuple.protocol) forEachAttribute(payload, from, visitProtocol, to)
  }
  forEachAttribute(payload, start, visit, end)
  return { protocol, source, destination }
}

function bytesIn(payload: Buffer, start: number, end: number): number | undefined {
  let bytes: number | undefined
  const visit = (type: number, from: number) => {
    if (type === counterBytes) bytes = Number(payload.readBigUInt64BE(from))
  }
  forEachAttribute(payload, start, visit, end)
  return bytes
}
