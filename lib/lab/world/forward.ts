import { connect, createServer, type NetConnectOpts, type Server } from 'node:net'

/** Listens, and leads every connection on to the target. Resolves once it listens. */
export async function forward(
  from: { readonly path: string } | { readonly host: string; readonly port: number },
  to: NetConnectOpts,
): Promise<Server> {
  const server = createServer({ allowHalfOpen: true }, (client) => {
    const target = connect({ ...to, allowHalfOpen: true })
    client.pipe(target)
    target.pipe(client)
    // Either side may go away at any moment; the other one then has nobody to talk to.
    client.on('error', () => target.destroy())
    target.on('error', () => client.destroy())
  })
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject)
    server.listen(from, () => {
      server.removeListener('error', reject)
      resolve()
    })
  })
  return server
}
