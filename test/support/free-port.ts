import { once } from 'node:events'
import { createServer } from 'node:net'

/** The kernel gives none of these to a program that asks for any port, so other tests do not get it. */
const ports = { first: 20_000, count: 10_000 }
let next = Math.floor(Math.random() * ports.count)

/** A TCP port on which nobody listens now. */
export async function freePort(host = '127.0.0.1'): Promise<number> {
  for (;;) {
    const port = ports.first + (next++ % ports.count)
    const server = createServer().listen(port, host)
    try {
      await once(server, 'listening')
    } catch {
      continue
    }
    await once(server.close(), 'close')
    return port
  }
}
