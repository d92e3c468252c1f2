import { once } from 'node:events'
import { Worker } from 'node:worker_threads'

/** What Node cannot do, done by system calls in a thread whose sockets belong to a cgroup. */
export type RawQuestion =
  /** One connection over IPv4; the server speaks first. */
  | { readonly do: 'fastopen' | 'mptcp' | 'io_uring'; readonly host: string; readonly port: number }
  /** One UDP socket connects to these in turn and asks each. Port 0 disconnects it (AF_UNSPEC). */
  | {
      readonly do: 'reconnect'
      readonly to: readonly { readonly host: string; readonly port: number }[]
    }
  /** Makes a network namespace for each path, bound to it, with a connected UDP socket inside. */
  | {
      readonly do: 'namespaces'
      readonly host: string
      readonly port: number
      readonly paths: readonly string[]
    }
  /** Asks the sockets of `namespaces` for their error. */
  | { readonly do: 'errors' }
  /** Connects so many sockets over IPv4 and keeps them. `begin` does not wait for the result. */
  | {
      readonly do: 'hold'
      readonly how: 'tcp' | 'begin' | 'udp' | 'mptcp' | 'fastopen' | 'io_uring'
      readonly host: string
      readonly port: number
      readonly count: number
    }
  /** Closes the oldest of the sockets that are kept. */
  | { readonly do: 'close'; readonly count: number }
  /** Listens without accepting and answers with the port. Only the first connection is complete. */
  | { readonly do: 'listen'; readonly host: string }

/**
 * The result of each step: a server's name, `address port` of the peer, or the name of an error.
 */
export type RawAnswer = readonly string[]

export interface RawClient {
  ask(question: RawQuestion): Promise<RawAnswer>
  close(): Promise<void>
}

export function startRawClient(cgroup: string): RawClient {
  const worker = new Worker(new URL('./raw-client-worker.js', import.meta.url), {
    workerData: cgroup,
    execArgv: [],
  })
  return {
    ask: async (question) => {
      worker.postMessage(question)
      const [answer] = (await once(worker, 'message')) as [RawAnswer]
      return answer
    },
    close: async () => {
      await worker.terminate()
    },
  }
}
