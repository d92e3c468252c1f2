import { addressText } from '../../kernel/addresses.js'
import { hostPort } from '../../state/ip.js'
import type { SocketConnection } from '../mode.js'
import { familyNumbers } from './layout.js'

/** What programs report of single connections, byte by byte. layout.ts describes the other maps. */

/** What is kept with a socket since its connection began. Times are in nanoseconds. */
export const begun = { at: 0, duration: 8, id: 16, bytes: 24 } as const

/** What became of a connection. `failed`: no endpoint took it. */
export const flowEvents = { opened: 1, ended: 2, failed: 3 } as const
export type FlowEvent = keyof typeof flowEvents

/**
 * A record in the ring. The client's port is in the machine's byte order, the others in network
 * order.
 */
export const flowRecord = {
  ...{ id: 0, event: 4, duration: 8, toEndpoint: 16, toClient: 24 },
  ...{ client: 32, original: 48, backend: 64 },
  ...{ clientPort: 80, originalPort: 84, backendPort: 86, family: 88 },
  bytes: 96,
} as const

/** The size of the ring. It has room for several times the records that one look passes on. */
export const flowRingBytes = 256 << 10

/** The size of the number that counts records without room in the ring. */
export const flowsLostBytes = 8

interface NotedFlow extends Omit<SocketConnection, 'service'> {
  /** The number of the target list. */
  readonly id: number
}

/** Reads a record; undefined if no program of this release wrote it. */
export function readFlow(bytes: Buffer): NotedFlow | undefined {
  const number = bytes.readUInt32LE(flowRecord.event)
  const event = names.find((name) => flowEvents[name] === number)
  if (!event) return undefined
  const isIp6 = bytes.readUInt8(flowRecord.family) === familyNumbers.IPv6
  const ipAt = (at: number) => addressText(isIp6 ? 'IPv6' : 'IPv4', bytes, at)
  const place = (at: number, portAt: number) => hostPort(ipAt(at), bytes.readUInt16BE(portAt))
  const numberAt = (at: number) => Number(bytes.readBigUInt64LE(at))
  const { client, clientPort, original, originalPort, backend, backendPort } = flowRecord
  return {
    event,
    id: bytes.readUInt32LE(flowRecord.id),
    client: hostPort(ipAt(client), bytes.readUInt16LE(clientPort)),
    address: place(original, originalPort),
    endpoint: place(backend, backendPort),
    durationMs: Math.round(numberAt(flowRecord.duration) / 1e6),
    bytesToEndpoint: numberAt(flowRecord.toEndpoint),
    bytesToClient: numberAt(flowRecord.toClient),
  }
}

const names: readonly FlowEvent[] = ['opened', 'ended', 'failed']
