import { once } from 'node:events'
import { Worker } from 'node:worker_threads'

/** A port on 127.0.0.1 of the namespace, or a socket file, which every namespace sees. */
export type BridgeEnd = { readonly port: number } | { readonly path: string }

export interface BridgeRequest {
  readonly namespace: string
  /** Where the bridge listens. */
  readonly from: BridgeEnd
  /** Where it leads. */
  readonly to: BridgeEnd
}

export interface Bridge {
  close(): Promise<void>
}

/**
 * Carries TCP connections between a namespace and the rest of the machine, through a socket
 * file, without giving the namespace a network it could be reached by.
 */
export async function openBridge(request: BridgeRequest): Promise<Bridge> {
  const worker = new Worker(new URL('./bridge-worker.js', import.meta.url), {
    workerData: request,
    execArgv: [],
  })
  // Rejects with what the worker threw, such as a port that is taken.
  await once(worker, 'message')
  worker.unref()
  return {
    close: async () => {
      await worker.terminate()
    },
  }
}
