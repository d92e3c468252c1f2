import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import { createServer as createTlsServer } from 'node:https'
import { once } from 'node:events'
import { readFile } from 'node:fs/promises'
import { extname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { clientLimit } from '../kernel/this-process.js'
import { close, portOf } from '../observe/http.js'
import { ClientConnections, patience } from '../observe/client-connections.js'
import { hostPort, parseIp } from '../state/ip.js'
import { codeOf, messageOf } from '../errors.js'
import { parsePageCommand } from './commands.js'
import { Readers, type ViewSource } from './readers.js'
import type { PageCommand } from './page-command.js'
import type { ObjectLine } from './view.js'

/**
 * What the page shows and controls: the playground, or a live daemon. Without `perform` all
 * commands are refused. With `isReadOnly` in its views the page hides its controls.
 */
export interface PageSource extends ViewSource {
  /** Resolves once it is done; rejects with the error that the page shows. */
  perform?(command: PageCommand): Promise<void>
  /** An object as YAML; undefined when there is none. */
  yaml?(line: ObjectLine): string | undefined
}

const ownFolder = fileURLToPath(new URL('browser', import.meta.url))

const types: Readonly<Record<string, string>> = {
  '.html': 'text/html; charset=utf-8',
  '.css': 'text/css; charset=utf-8',
  '.js': 'text/javascript; charset=utf-8',
}

/** The file of a page that a path names; undefined for other paths. */
function fileAt(path: string): string | undefined {
  return path === '/' ? 'index.html' : /^\/([a-z-]+\.(?:css|js))$/.exec(path)?.[1]
}

const headers = {
  'content-security-policy':
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
  'x-content-type-options': 'nosniff',
  'referrer-policy': 'no-referrer',
  'cache-control': 'no-store',
} as const

/** Where and how the page can be opened. Only this machine can open the playground. */
export interface PageAccess {
  readonly host: string
  /** Whether to take the next port where one is taken. */
  readonly fallsForward: boolean
  /** Certificate and key; undefined: plain HTTP. */
  readonly tls: { readonly cert: Buffer; readonly key: Buffer } | undefined
  /** The answer to a client that may not read; undefined for a client that may. */
  refusal(request: IncomingMessage): Reply | undefined
}

/** An answer in words. */
export interface Reply {
  readonly status: number
  readonly text: string
  readonly headers?: Readonly<Record<string, string>>
}

const thisMachine: PageAccess = {
  host: '127.0.0.1',
  fallsForward: true,
  tls: undefined,
  refusal: () => undefined,
}

/** A browser opens up to seven connections while it loads a page, and keeps one of them. */
const connectionsMax = 32
const maximumBody = 131_072
/** The least time between two views. Traffic changes the view all the time; nobody reads faster. */
const frameMs = 100
/** Long enough for a whole view over a bad line. */
const stalledMs = 30_000

export class PageServer {
  readonly #folder: string
  /** Undefined for a page that makes its views itself. */
  readonly #source: PageSource | undefined
  readonly #access: PageAccess
  readonly #server: Server
  readonly #clients: ClientConnections
  readonly #readers: Readers | undefined
  /** The most connections that receive views. Others are for commands and for pages that load. */
  readonly #readersMax: number
  #port = 0

  private constructor(folder: string, access: PageAccess, source?: PageSource) {
    this.#folder = folder
    this.#source = source
    this.#access = access
    this.#readers = source && new Readers({ source, frameMs, stalledMs })
    const answer = (request: IncomingMessage, response: ServerResponse) => {
      void this.#answer(request, response)
        .catch((error: unknown): Reply => ({ status: 500, text: messageOf(error) }))
        .then((reply) => {
          if (reply && response.headersSent) response.end()
          else if (reply) send(response, reply)
        })
    }
    this.#server = access.tls
      ? createTlsServer({ ...access.tls, ...patience(), handshakeTimeout: 10_000 }, answer)
      : createServer(patience(), answer)
    const connections = clientLimit(connectionsMax)
    this.#readersMax = Math.ceil(connections / 2)
    this.#clients = new ClientConnections(connections)
    this.#clients.watch(this.#server)
  }

  static listen(source: PageSource, port: number, access = thisMachine): Promise<PageServer> {
    return new PageServer(ownFolder, access, source).#listen(port)
  }

  /** Serves the folder of a site (`npm run site`), whose cluster is in the browser. */
  static listenSite(folder: string, port: number): Promise<PageServer> {
    return new PageServer(folder, thisMachine).#listen(port)
  }

  async #listen(port: number): Promise<this> {
    const { host, fallsForward } = this.#access
    for (let tried = 0; ; tried++) {
      try {
        this.#server.listen(port === 0 ? 0 : port + tried, host)
        await once(this.#server, 'listening')
        // An error while a client is accepted must not end the process.
        this.#server.on('error', () => undefined)
        this.#port = portOf(this.#server)
        return this
      } catch (error) {
        if (codeOf(error) !== 'EADDRINUSE' || !fallsForward || tried >= 20) throw error
      }
    }
  }

  get url(): string {
    const { tls, host } = this.#access
    return `${tls ? 'https' : 'http'}://${hostPort(host, this.#port)}`
  }

  async close(): Promise<void> {
    const closed = close(this.#server)
    this.#clients.end()
    await closed
  }

  /** Sends a file or a stream, or returns an answer in words. */
  async #answer(request: IncomingMessage, response: ServerResponse): Promise<Reply | undefined> {
    // A foreign DNS name may resolve to this address (DNS rebinding), so it is refused.
    if (!this.#isOurs(request.headers.host)) return { status: 403, text: 'foreign Host header' }
    const target = request.url ?? '/'
    if (!URL.canParse(target, this.url)) return { status: 400, text: 'the path cannot be read' }
    const refusal = this.#access.refusal(request)
    if (refusal) return refusal
    const { pathname, searchParams } = new URL(target, this.url)
    if (request.method === 'POST' && pathname === '/command')
      return this.#command(request, response)
    // HEAD asks for all that a GET sends before its body; the events never end.
    const isHead = request.method === 'HEAD' && pathname !== '/events'
    if (!isHead && request.method !== 'GET')
      return { status: 405, text: 'only GET, and POST /command' }
    if (pathname === '/events' && this.#readers) return this.#events(response, this.#readers)
    if (pathname === '/object' && this.#source) {
      const part = (key: string) => searchParams.get(key) ?? ''
      const [apiVersion, kind] = [part('apiVersion'), part('kind')]
      const line = { apiVersion, kind, namespace: part('namespace'), name: part('name') }
      const text = this.#source.yaml?.(line)
      if (text !== undefined) return { status: 200, text }
      return { status: 404, text: `there is no ${kind} ${line.name}` }
    }
    const file = fileAt(pathname)
    const content = file === undefined ? undefined : await contentOf(join(this.#folder, file))
    if (file === undefined || !content) return { status: 404, text: 'no such page' }
    response.writeHead(200, { ...headers, 'content-type': types[extname(file)] }).end(content)
    return undefined
  }

  /** The port is not compared, because a tunnel (ssh, kubectl port-forward) may begin at any. */
  #isOurs(name = ''): boolean {
    const { host } = this.#access
    if (/^localhost(:\d+)?$/.test(name)) return host === '127.0.0.1' || host === '::1'
    // A page on all addresses accepts only addresses, because any name may resolve to this one.
    const [, address = ''] = /^\[?([0-9a-fA-F.:]+?)\]?(?::\d+)?$/.exec(name) ?? []
    const ip = parseIp(address)
    return host === '0.0.0.0' || host === '::' ? ip !== undefined : ip?.text === host
  }

  async #command(request: IncomingMessage, response: ServerResponse): Promise<Reply | undefined> {
    if (!this.#source?.perform) {
      return { status: 405, text: 'this page is read-only and accepts no commands' }
    }
    const { origin, host } = request.headers
    if (origin !== undefined && origin.replace(/^https?:\/\//, '') !== host) {
      return { status: 403, text: 'foreign Origin header' }
    }
    // Other sites cannot send this type without a CORS preflight.
    if (request.headers['content-type'] !== 'application/json') {
      return { status: 415, text: 'send application/json' }
    }
    let body = ''
    for await (const chunk of request.setEncoding('utf8')) {
      body += String(chunk)
      if (body.length <= maximumBody) continue
      // Leaving the loop closes the connection, so this is sent first.
      send(response, { status: 413, text: 'the command is too long' })
      return undefined
    }
    const command = parsePageCommand(body)
    if (!command) return { status: 400, text: 'the page has no such command' }
    // Some commands, such as a switch of the mode, take longer than a client may be silent.
    request.socket.setTimeout(0)
    try {
      await this.#source.perform(command)
      return { status: 200, text: '' }
    } catch (error) {
      return { status: 409, text: messageOf(error) }
    }
  }

  #events(response: ServerResponse, readers: Readers): Reply | undefined {
    const most = this.#readersMax
    if (readers.size >= most) {
      const text = `${most} pages are open already; close one and load this again`
      return { status: 503, text }
    }
    // Frames come when something changes, which may take hours.
    response.socket?.setTimeout(0)
    response.writeHead(200, { ...headers, 'content-type': 'text/event-stream' }).flushHeaders()
    readers.add(response)
    return undefined
  }
}

async function contentOf(path: string): Promise<Buffer | undefined> {
  try {
    return await readFile(path)
  } catch (error) {
    if (codeOf(error) === 'ENOENT') return undefined
    throw error
  }
}

function send(response: ServerResponse, { status, text, headers: more }: Reply): void {
  const type = 'text/plain; charset=utf-8'
  response.writeHead(status, { ...headers, 'content-type': type, ...more }).end(text)
}
