import { once } from 'node:events'
import { createServer, type Server } from 'node:net'
import { createSocket } from 'node:dgram'
import type { AddressInfo } from 'node:net'
import { Worker } from 'node:worker_threads'
import { mountOf } from '../../lib/kernel/cgroup.js'

/** What a client is asked to do. */
export type Question =
  | { readonly do: 'connect'; readonly host: string; readonly port: number; readonly from?: string }
  | {
      /** Sends on an unconnected socket of that name, which stays open. */
      readonly do: 'send'
      readonly socket: string
      readonly type: 'udp4' | 'udp6'
      readonly host: string
      readonly port: number
      /** The address that a new socket is bound to; absent: none. */
      readonly from?: string
    }
  /** Sends on a connected socket of that name; `to` connects it first. */
  | {
      readonly do: 'talk'
      readonly socket: string
      readonly type: 'udp4' | 'udp6'
      readonly to?: { readonly host: string; readonly port: number }
    }
  | Exchange

/** Makes connections one after the other, and sends and receives so many bytes on each. */
export interface Exchange {
  readonly do: 'exchange'
  readonly host: string
  readonly port: number
  readonly connections: number
  readonly request: number
  readonly answer: number
  /**
   * How the client ends after the answer: after the server, at once, only its half, or by a reset.
   */
  readonly end: 'after' | 'close' | 'half' | 'reset'
}

export interface Answer {
  /** What the server called itself. */
  readonly name?: string
  /** The server as the client sees it, as `address port`. */
  readonly peer?: string
  /** An error code, or `silence`. */
  readonly error?: string
}

export interface CgroupClient {
  ask(question: Question): Promise<Answer>
  close(): Promise<void>
}

/** A reason to skip a test that needs a cgroup of version 2, or false. */
export const cgroupSkip: string | false =
  process.getuid?.() !== 0
    ? 'needs root for eBPF'
    : mountOf('cgroup2') === undefined
      ? 'cgroup2 is not mounted here'
      : false

/** A thread whose sockets belong to a threaded cgroup. */
export function startCgroupClient(cgroup: string): CgroupClient {
  const worker = new Worker(new URL('./cgroup-client-worker.js', import.meta.url), {
    workerData: cgroup,
    execArgv: [],
  })
  return {
    ask: async (question) => {
      worker.postMessage(question)
      const [answer] = (await once(worker, 'message')) as [Answer]
      return answer
    },
    close: async () => {
      await worker.terminate()
    },
  }
}

export interface NamedServer {
  readonly port: number
  close(): Promise<void>
}

/** A server that sends its name to every client. */
export async function serveTcp(name: string, host: string): Promise<NamedServer> {
  const server = createServer((socket) =>
    socket
      .on('error', () => undefined)
      .resume()
      .end(name),
  )
  return listening(server, host)
}

async function listening(server: Server, host: string): Promise<NamedServer> {
  server.listen(0, host)
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo
  return {
    port,
    close: async () => {
      server.close()
      await once(server, 'close')
    },
  }
}

/** A server that answers `request` bytes with `answer` bytes, and then ends if `ends` says so. */
export async function serveExchange(
  host: string,
  { request, answer, ends }: Pick<Exchange, 'request' | 'answer'> & { readonly ends: boolean },
): Promise<NamedServer> {
  const server = createServer({ allowHalfOpen: true }, (socket) => {
    let left = request
    socket.on('error', () => undefined)
    socket.on('end', () => socket.end())
    socket.on('data', ({ length }) => {
      left -= length
      if (left > 0) return
      socket.write(Buffer.alloc(answer))
      if (ends) socket.end()
    })
  })
  return listening(server, host)
}

/** A server that answers every datagram with its name. */
export async function serveUdp(name: string, host: string, wantedPort = 0): Promise<NamedServer> {
  const socket = createSocket(host.includes(':') ? 'udp6' : 'udp4')
  socket.on('message', (_, { port, address }) => socket.send(name, port, address))
  socket.bind(wantedPort, host)
  await once(socket, 'listening')
  return {
    port: socket.address().port,
    close: async () => {
      socket.close()
      await once(socket, 'close')
    },
  }
}
