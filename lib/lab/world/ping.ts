import { setTimeout as sleep } from 'node:timers/promises'
import { NativeSocket, checksum } from './native-socket.js'

const echoRequest = { IPv4: 8, IPv6: 128 } as const
const echoReply = { IPv4: 0, IPv6: 129 } as const
const pollMs = 2

/** Sends one ICMP echo request; true once its answer comes, false when the time is over. */
export async function ping(host: string, timeoutMs: number): Promise<boolean> {
  const socket = new NativeSocket(host, 'raw', 'icmp')
  try {
    const id = Math.floor(Math.random() * 0x1_0000)
    const request = Buffer.alloc(16)
    request.writeUInt8(echoRequest[socket.family], 0)
    request.writeUInt16BE(id, 4)
    // The kernel fills in the checksum for IPv6, which depends on the addresses.
    if (socket.family === 'IPv4') request.writeUInt16BE(checksum(request), 2)
    socket.send(request, host)
    for (const end = performance.now() + timeoutMs; performance.now() < end;) {
      // Everybody's ICMP arrives at a raw socket, one's own request to oneself too.
      for (let got = socket.receive(); got !== undefined; got = socket.receive()) {
        const isAnswer = got.length >= 8 && got.readUInt8(0) === echoReply[socket.family]
        if (isAnswer && got.readUInt16BE(4) === id) return true
      }
      await sleep(pollMs)
    }
    return false
  } finally {
    socket.close()
  }
}
