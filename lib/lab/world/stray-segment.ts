import { encodeAddress } from '../../kernel/sockets/socket-address.js'
import { NativeSocket, checksum } from './native-socket.js'

export interface StrayRequest {
  /** The connection: the address here, and the address and port of the peer. */
  readonly own: string
  readonly peer: string
  readonly peerPort: number
  readonly timeoutMs: number
}

const ack = 0x10

/**
 * Waits for the next segment of a TCP connection and answers it with one that lies far beyond the
 * window (CT16). Connection tracking calls such a packet invalid and does not translate it back. A
 * client that gets it untranslated has no such connection and answers with a reset, which ends the
 * real one. Newer kernels accept segments far behind the window, so this one lies ahead of it.
 */
export async function sendStraySegment(request: StrayRequest): Promise<void> {
  const { own, peer, peerPort, timeoutMs } = request
  const socket = new NativeSocket(own, 'raw', 'tcp')
  try {
    const segment = await socket.first(timeoutMs, (got) =>
      got.length >= 20 && got.readUInt16BE(0) === peerPort ? got : undefined,
    )
    if (!segment) throw new Error(`no segment from ${peer} port ${peerPort} within ${timeoutMs} ms`)
    socket.send(strayAnswer(segment, own, peer), peer)
  } finally {
    socket.close()
  }
}

/** A bare acknowledgement of all the segment holds, with a sequence number far ahead. */
function strayAnswer(segment: Buffer, own: string, peer: string): Buffer {
  const headerBytes = (segment.readUInt8(12) >> 4) * 4
  const next = segment.readUInt32BE(4) + segment.length - headerBytes
  const answer = Buffer.alloc(20)
  answer.writeUInt16BE(segment.readUInt16BE(2), 0)
  answer.writeUInt16BE(segment.readUInt16BE(0), 2)
  answer.writeUInt32BE((segment.readUInt32BE(8) + 1_000_000_000) % 0x1_0000_0000, 4)
  answer.writeUInt32BE(next % 0x1_0000_0000, 8)
  answer.writeUInt8(5 << 4, 12)
  answer.writeUInt8(ack, 13)
  answer.writeUInt16BE(1024, 14)
  const lengths = Buffer.from([0, 6, 0, answer.length])
  answer.writeUInt16BE(checksum(Buffer.concat([ipBytes(own), ipBytes(peer), lengths, answer])), 16)
  return answer
}

function ipBytes(ip: string): Uint8Array {
  const address = encodeAddress({ ip, port: 0 })
  return address.length === 16 ? address.subarray(4, 8) : address.subarray(8, 24)
}
