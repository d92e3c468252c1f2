import { createSocket } from 'node:dgram'
import { once } from 'node:events'

/** Whether a socket can listen on this address, which only an address of this machine allows. */
export async function canBind(ip: string): Promise<boolean> {
  const socket = createSocket({
    type: ip.includes(':') ? 'udp6' : 'udp4',
    lookup: (host, _options, done) => done(null, host, host.includes(':') ? 6 : 4),
  })
  try {
    const listening = once(socket, 'listening')
    socket.bind({ address: ip, port: 0, exclusive: true })
    await listening
    return true
  } catch {
    return false
  } finally {
    socket.close()
  }
}
