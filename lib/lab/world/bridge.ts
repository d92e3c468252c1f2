import { once } from 'node:events'
import { connect, createServer, type NetConnectOpts, type Server } from 'node:net'
import { startThread } from '../../engine.js'

/** A port of the namespace, on 127.0.0.1 unless told otherwise; or a socket file, which every namespace sees. */
export type BridgeEnd =
  | { readonly port: number; readonly host?: string }
  | { readonly path: string }

export interface BridgeRequest {
  readonly namespace: string
  readonly from: BridgeEnd
  readonly to: BridgeEnd
}

export interface Bridge {
  close(): Promise<void>
}

/**
 * Carries TCP connections between a namespace and the rest of the machine, through a socket file,
 * so the namespace needs no network to the machine.
 */
export async function openBridge(request: BridgeRequest): Promise<Bridge> {
  const worker = startThread(new URL('./bridge-worker.js', import.meta.url), request)
  // Rejects with what the worker threw, such as a port that is taken.
  await once(worker, 'message')
  worker.unref()
  return {
    close: async () => {
      await worker.terminate()
    },
  }
}

/** Listens, and passes every connection on to the target. Resolves once it listens. */
export async function forward(
  from: { readonly path: string } | { readonly host: string; readonly port: number },
  to: NetConnectOpts,
): Promise<Server> {
  // Nagle's algorithm would hold back the second of two small messages for 40 ms.
  const options = { allowHalfOpen: true, noDelay: true }
  const server = createServer(options, (client) => {
    const target = connect({ ...to, ...options })
    client.pipe(target)
    target.pipe(client)
    // Either side may close at any moment; then the other side is closed, too.
    client.on('error', () => target.destroy())
    target.on('error', () => client.destroy())
  })
  await once(server.listen(from), 'listening')
  return server
}
