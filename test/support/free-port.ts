import { once } from 'node:events'
import { createServer, type AddressInfo } from 'node:net'

/** A TCP port of 127.0.0.1 on which nobody listens now. */
export async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo
  await once(server.close(), 'close')
  return port
}
