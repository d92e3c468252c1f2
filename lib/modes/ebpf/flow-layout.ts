import { addressText } from '../../kernel/addresses.js'
import { hostPort } from '../../state/ip.js'
import type { SocketClient, SocketConnection } from '../mode.js'
import { familyNumbers } from './layout.js'

/** What programs report of single connections, byte by byte. layout.ts describes the other maps. */

/** What is kept with a socket since its connection began. Times are in nanoseconds. */
export const begun = { at: 0, duration: 8, id: 16, bytes: 24 } as const

/**
 * What became of a connection. `failed`: no endpoint took it. `client`: a UDP socket sends to a
 * Service from now on.
 */
export const flowEvents = { opened: 1, ended: 2, failed: 3, client: 4 } as const
export type FlowEvent = keyof typeof flowEvents

/**
 * A record in the ring. The client's port is in the machine's byte order, the others in network
 * order. Only a UDP client has the number of its process, and only TCP has duration and bytes.
 */
export const flowRecord = {
  ...{ id: 0, event: 4, duration: 8, toEndpoint: 16, toClient: 24 },
  ...{ client: 32, original: 48, backend: 64 },
  ...{ clientPort: 80, originalPort: 84, backendPort: 86, family: 88, process: 92 },
  bytes: 96,
} as const

/** The size of the ring. It has room for several times the records that one look passes on. */
export const flowRingBytes = 256 << 10

/** The size of the number that counts records without room in the ring. */
export const flowsLostBytes = 8

interface NotedFlow {
  /** The number of the target list. */
  readonly id: number
  readonly flow: Unnamed<SocketConnection> | Unnamed<SocketClient>
}

/** Programs know the Service by number only. */
type Unnamed<Flow> = Omit<Flow, 'service'>

/** Reads a record; undefined if no program of this release wrote it. */
export function readFlow(bytes: Buffer): NotedFlow | undefined {
  const number = bytes.readUInt32LE(flowRecord.event)
  const event = names.find((name) => flowEvents[name] === number)
  if (!event) return undefined
  const id = bytes.readUInt32LE(flowRecord.id)
  const places = placesIn(bytes)
  if (event === 'client') {
    return { id, flow: { event, process: bytes.readUInt32LE(flowRecord.process), ...places } }
  }
  const numberAt = (at: number) => Number(bytes.readBigUInt64LE(at))
  const flow = {
    ...{ event, ...places },
    durationMs: Math.round(numberAt(flowRecord.duration) / 1e6),
    bytesToEndpoint: numberAt(flowRecord.toEndpoint),
    bytesToClient: numberAt(flowRecord.toClient),
  }
  return { id, flow }
}

const names: readonly FlowEvent[] = ['opened', 'ended', 'failed', 'client']

function placesIn(bytes: Buffer): Pick<SocketConnection, 'client' | 'address' | 'endpoint'> {
  const isIp6 = bytes.readUInt8(flowRecord.family) === familyNumbers.IPv6
  const ipAt = (at: number) => addressText(isIp6 ? 'IPv6' : 'IPv4', bytes, at)
  const place = (at: number, portAt: number) => hostPort(ipAt(at), bytes.readUInt16BE(portAt))
  const { client, clientPort, original, originalPort, backend, backendPort } = flowRecord
  const isBound = bytes.subarray(client, client + (isIp6 ? 16 : 4)).some((byte) => byte !== 0)
  return {
    client: isBound ? hostPort(ipAt(client), bytes.readUInt16LE(clientPort)) : '',
    address: place(original, originalPort),
    endpoint: place(backend, backendPort),
  }
}
