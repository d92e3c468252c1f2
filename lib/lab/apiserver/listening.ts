import type { Server } from 'node:http'
import { ConfigError } from '../../errors.js'

export function listen(server: Server, host: string, port: number): Promise<void> {
  return new Promise((resolve, reject) => {
    const refused = (cause: Error) =>
      reject(new ConfigError(`listen on ${host} port ${port}: ${cause.message}`, { cause }))
    server.once('error', refused)
    server.listen({ host, port }, () => {
      server.off('error', refused)
      resolve()
    })
  })
}

export function close(server: Server): Promise<void> {
  return new Promise((resolve) => {
    if (!server.listening) {
      resolve()
      return
    }
    server.close(() => resolve())
    // Watches do not end by themselves, so their connections are closed.
    server.closeAllConnections()
  })
}
