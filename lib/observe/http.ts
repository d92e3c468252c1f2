import { once } from 'node:events'
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import { codeOf, KernelError, messageOf } from '../errors.js'
import { ClientConnections, patience } from './client-connections.js'

export interface HttpRequest {
  readonly method: string
  readonly path: string
  /** The part of the URL after the question mark. */
  readonly query: string
  /** The body of a PUT; empty for other methods. */
  readonly body: string
}

export interface HttpReply {
  readonly status: number
  readonly type: string
  readonly body: string
  readonly headers?: Readonly<Record<string, string>>
}

export type HttpHandler = (request: HttpRequest) => HttpReply | Promise<HttpReply>

interface ListenOptions {
  readonly host: string
  readonly port: number
  readonly handler: HttpHandler
  readonly ipv6Only?: boolean
  /** How long a client may send nothing. */
  readonly idleMs?: number
  /** The bound on connections, perhaps shared with other servers. */
  readonly clients?: ClientConnections | undefined
}

interface HttpServerOptions extends ListenOptions {
  /** Whether to throw when the port cannot be opened. Otherwise it is tried again (L22). */
  readonly failHard: boolean
  readonly retryMs: number
  /** The port could not be opened. */
  readonly failed: (message: string, code: string) => void
  /** The port is open. It is the real port where `port` is 0. */
  readonly listening?: (port: number) => void
  /** Resolves after `ms`, or at once when the signal comes; never rejects. */
  readonly sleep: (ms: number, signal: AbortSignal) => Promise<void>
}

/** Serves until the signal. When the port cannot be opened, it tries again. */
export async function runHttpServer(
  options: HttpServerOptions,
  signal: AbortSignal,
): Promise<void> {
  const { host, port, failHard, retryMs, failed, sleep } = options
  while (!signal.aborted) {
    let wasOpen = false
    try {
      const server = await listenFor(options)
      wasOpen = true
      options.listening?.(portOf(server))
      await closed(server, signal)
    } catch (error) {
      const message = `listen on ${host} port ${port}: ${messageOf(error)}`
      failed(message, codeOf(error))
      // A port that was open once is ours, so a later failure passes.
      if (failHard && !wasOpen) {
        const advice = 'free the port, choose another, or leave out --bind-address-hard-fail'
        throw new KernelError('busy', `${message}; ${advice}`, { cause: error })
      }
      await sleep(retryMs, signal)
    }
  }
}

/**
 * 0.0.0.0 means both families, as in every program written in Go. On a node with IPv6 only, kubelet
 * asks for the health of this process over IPv6.
 */
async function listenFor(options: ListenOptions): Promise<Server> {
  if (options.host !== '0.0.0.0') return listen(options)
  try {
    return await listen({ ...options, host: '::' })
  } catch (error) {
    if (!['EAFNOSUPPORT', 'EADDRNOTAVAIL'].includes(codeOf(error))) throw error
    return listen(options)
  }
}

const maxBodyBytes = 4096

/** Opens a server. Rejects when the port cannot be opened. */
export async function listen(options: ListenOptions): Promise<Server> {
  const { host, port, handler, ipv6Only = false, idleMs } = options
  const server = createServer(patience(idleMs), (request, reply) => {
    if (!request.socket.destroyed) void answer(handler, request, reply)
  })
  const { clients = new ClientConnections() } = options
  clients.watch(server)
  await once(server.listen({ host, port, ipv6Only }), 'listening')
  return server
}

/** Closes the server and every connection to it. */
export function close(server: Server): Promise<void> {
  return new Promise((resolve) => {
    server.close(() => resolve())
    server.closeAllConnections()
  })
}

export function portOf(server: Server): number {
  const address = server.address()
  return typeof address === 'object' && address !== null ? address.port : 0
}

export function text(body: string, status = 200): HttpReply {
  return { status, type: 'text/plain; charset=utf-8', body }
}

export function json(value: unknown, status = 200): HttpReply {
  return { status, type: 'application/json', body: `${JSON.stringify(value, undefined, 2)}\n` }
}

async function answer(
  handler: HttpHandler,
  request: IncomingMessage,
  reply: ServerResponse,
): Promise<void> {
  let result: HttpReply
  try {
    const url = request.url ?? '/'
    const [path = ''] = url.split('?', 1)
    const query = url.slice(path.length + 1)
    const method = request.method ?? 'GET'
    const body = method === 'PUT' ? await readBody(request) : ''
    result =
      body === undefined
        ? text(`the body is longer than ${maxBodyBytes} bytes\n`, 413)
        : await handler({ method, path, query, body })
  } catch (error) {
    result = text(`${messageOf(error)}\n`, 500)
  }
  reply.writeHead(result.status, {
    'Content-Type': result.type,
    'X-Content-Type-Options': 'nosniff',
    'Content-Length': Buffer.byteLength(result.body),
    ...result.headers,
  })
  reply.end(request.method === 'HEAD' ? undefined : result.body)
}

/** Undefined when the body is too long. */
async function readBody(request: IncomingMessage): Promise<string | undefined> {
  let body = ''
  // The rest stays unread: Node drops it once the answer is sent.
  for await (const chunk of request.iterator({ destroyOnReturn: false })) {
    body += String(chunk)
    if (body.length > maxBodyBytes) return undefined
  }
  return body
}

function closed(server: Server, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const stop = () => void close(server).then(resolve)
    if (signal.aborted) stop()
    else signal.addEventListener('abort', stop, { once: true })
    server.once('error', (error) => {
      signal.removeEventListener('abort', stop)
      void close(server).then(() => reject(error))
    })
  })
}
