import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import { once } from 'node:events'
import { readFile } from 'node:fs/promises'
import { messageOf } from '../errors.js'
import { parsePageCommand } from './page-commands.js'
import type { ObjectLine, PageCommand, View } from './view.js'

/**
 * What the page shows and steers. This is the seam for a page over something else than the
 * playground: a source of views without `perform` (and with `isReadOnly` in its views) is served
 * with every control hidden, and whoever sends a command is refused.
 */
export interface Stage {
  view(): View
  /** Calls back after every change until the returned function is called. */
  subscribe(listener: () => void): () => void
  /** Resolves once it is done; rejects with what the learner should read. */
  perform?(command: PageCommand): Promise<void>
  /** An object as YAML; undefined when there is none. */
  yaml?(line: ObjectLine): string | undefined
}

const scripts = [
  ...['page', 'controls', 'element', 'picture', 'picture-layout', 'packets', 'path-panel'],
  ...['traffic-panel', 'rules-panel', 'timeline-panel', 'lessons-panel', 'yaml-panel', 'send'],
]

const assets: Readonly<Record<string, readonly [file: string, type: string]>> = {
  '/': ['index.html', 'text/html; charset=utf-8'],
  '/style.css': ['style.css', 'text/css; charset=utf-8'],
  ...Object.fromEntries(
    scripts.map((name) => [`/${name}.js`, [`${name}.js`, 'text/javascript; charset=utf-8']]),
  ),
}

const headers = {
  'content-security-policy':
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
  'x-content-type-options': 'nosniff',
  'referrer-policy': 'no-referrer',
  'cache-control': 'no-store',
} as const

const host = '127.0.0.1'
const maximumBody = 131_072
/** Traffic changes the view all the time; nobody reads faster. */
const frameMs = 100

/** Serves the page on loopback from `port` on, or from the next one that is free; to its URL. */
export class PageServer {
  readonly #stage: Stage
  readonly #server: Server
  #port = 0

  private constructor(stage: Stage) {
    this.#stage = stage
    this.#server = createServer((request, response) => {
      this.#answer(request, response).catch((error: unknown) => {
        if (response.headersSent) response.end()
        else reply(response, 500, messageOf(error))
      })
    })
  }

  static async listen(stage: Stage, port: number): Promise<PageServer> {
    const page = new PageServer(stage)
    for (let tried = 0; ; tried++) {
      try {
        page.#server.listen(port === 0 ? 0 : port + tried, host)
        await once(page.#server, 'listening')
        const address = page.#server.address()
        page.#port = typeof address === 'object' && address ? address.port : port
        return page
      } catch (error) {
        const isTaken = error instanceof Error && 'code' in error && error.code === 'EADDRINUSE'
        if (!isTaken || tried >= 20) throw error
      }
    }
  }

  get url(): string {
    return `http://${host}:${this.#port}`
  }

  async close(): Promise<void> {
    const closed = once(this.#server, 'close')
    this.#server.close()
    this.#server.closeAllConnections()
    await closed
  }

  async #answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    // A name that somebody else's DNS points here must not reach this page (DNS rebinding).
    if (!this.#isOurs(request.headers.host)) {
      reply(response, 403, 'foreign Host header')
      return
    }
    const { pathname, searchParams } = new URL(request.url ?? '/', this.url)
    if (request.method === 'POST' && pathname === '/command') {
      return this.#command(request, response)
    }
    if (request.method !== 'GET') {
      reply(response, 405, 'only GET, and POST /command')
      return
    }
    if (pathname === '/events') {
      this.#events(response)
      return
    }
    if (pathname === '/object') {
      const part = (key: string) => searchParams.get(key) ?? ''
      const [apiVersion, kind] = [part('apiVersion'), part('kind')]
      const line = { apiVersion, kind, namespace: part('namespace'), name: part('name') }
      const yaml = this.#stage.yaml?.(line)
      reply(response, yaml === undefined ? 404 : 200, yaml ?? `there is no ${kind} ${line.name}`)
      return
    }
    const asset = Object.hasOwn(assets, pathname) ? assets[pathname] : undefined
    if (!asset) {
      reply(response, 404, 'no such page')
      return
    }
    const [file, type] = asset
    const content = await readFile(new URL(`page/${file}`, import.meta.url))
    response.writeHead(200, { ...headers, 'content-type': type }).end(content)
  }

  #isOurs(name: string | undefined): boolean {
    return name === `${host}:${this.#port}` || name === `localhost:${this.#port}`
  }

  async #command(request: IncomingMessage, response: ServerResponse): Promise<void> {
    if (!this.#stage.perform) {
      reply(response, 405, 'this page only shows')
      return
    }
    const { origin } = request.headers
    if (origin !== undefined && !this.#isOurs(origin.replace(/^http:\/\//, ''))) {
      reply(response, 403, 'foreign Origin header')
      return
    }
    // Forms of other sites cannot send this type without asking first.
    if (request.headers['content-type'] !== 'application/json') {
      reply(response, 415, 'send application/json')
      return
    }
    let body = ''
    for await (const chunk of request.setEncoding('utf8')) {
      body += String(chunk)
      if (body.length > maximumBody) {
        reply(response, 413, 'the command is too long')
        return
      }
    }
    const command = parsePageCommand(body)
    if (!command) {
      reply(response, 400, 'this is no command of the page')
      return
    }
    try {
      await this.#stage.perform(command)
      reply(response, 200, '')
    } catch (error) {
      reply(response, 409, messageOf(error))
    }
  }

  #events(response: ServerResponse): void {
    response.writeHead(200, { ...headers, 'content-type': 'text/event-stream' })
    let timer: NodeJS.Timeout | undefined
    /** What this reader knows already: only parts that differ are sent again. */
    const sent = new Map<string, string>()
    const send = () => {
      timer = undefined
      const fresh = Object.entries(this.#stage.view()).flatMap(([key, value]) => {
        const text = JSON.stringify(value)
        if (sent.get(key) === text) return []
        sent.set(key, text)
        return [`${JSON.stringify(key)}:${text}`]
      })
      if (fresh.length > 0) response.write(`data: {${fresh.join(',')}}\n\n`)
    }
    send()
    const unsubscribe = this.#stage.subscribe(() => (timer ??= setTimeout(send, frameMs)))
    response.on('close', () => {
      unsubscribe()
      clearTimeout(timer)
    })
  }
}

function reply(response: ServerResponse, status: number, text: string): void {
  response.writeHead(status, { ...headers, 'content-type': 'text/plain; charset=utf-8' }).end(text)
}
