import { once } from 'node:events'
import { createServer, type RequestListener, type Server } from 'node:http'
import { createServer as createTlsServer } from 'node:https'
import { ConfigError, messageOf } from '../../errors.js'
import { hostPort } from '../../state/ip.js'
import { ApiObjects, objectDefaults, type ApiObjectsOptions } from './objects.js'
import type { Certificate } from './certificate.js'
import { fakeRuntime } from './controllers/pod-runtime.js'
import type { Disturb, OpenWatch } from './disturbance.js'
import { writeKubeconfig } from './kubeconfig.js'
import { serve, type RouteDeps } from './routes.js'
import { eventTexts } from './watching.js'

export interface ApiServerOptions extends ApiObjectsOptions {
  readonly host: string
  /** 0 lets the system choose; a later run listens on the same port again. */
  readonly port: number
  /** PEM; plain HTTP when absent. */
  readonly tls: Certificate | undefined
  /** Which bearer tokens are accepted; undefined accepts every client. */
  readonly accepts: ((token: string) => boolean) | undefined
  readonly bookmarkEveryMs: number
  /** Whether the proxy of pods may reach this machine itself. */
  readonly proxiesToLoopback: boolean
  /** For tests of clients. */
  readonly disturb: Disturb
}

const defaults: Omit<ApiServerOptions, 'runtime'> = {
  ...objectDefaults,
  host: '127.0.0.1',
  port: 0,
  tls: undefined,
  accepts: undefined,
  bookmarkEveryMs: 60_000,
  proxiesToLoopback: false,
  disturb: () => undefined,
}

export function createApiServer(options: Partial<ApiServerOptions> = {}): ApiServer {
  return new ApiServer({ ...defaults, runtime: fakeRuntime(), ...options })
}

/** A Kubernetes API server in memory: over HTTP for clients, by method calls for this process. */
export class ApiServer extends ApiObjects {
  readonly watches = new Set<OpenWatch>()
  readonly #options: ApiServerOptions
  readonly #waiting: ((url: string) => void)[] = []
  #port: number
  #url: string | undefined

  constructor(options: ApiServerOptions) {
    super(options)
    this.#options = options
    this.#port = options.port
  }

  /** Where clients reach the server, once it listens. */
  async listening(): Promise<string> {
    if (this.#url !== undefined) return this.#url
    return new Promise((resolve) => this.#waiting.push(resolve))
  }

  /** Serves until the signal; the objects stay, and it may run again after that. */
  async run(signal: AbortSignal): Promise<void> {
    if (signal.aborted) return
    const server = this.#createServer()
    // Watches are idle for as long as nothing changes.
    server.requestTimeout = 0
    server.keepAliveTimeout = 90_000
    try {
      await listen(server, this.#options.host, this.#port)
      this.#opened(server)
      await this.control(signal)
    } finally {
      this.#url = undefined
      await close(server)
    }
  }

  /** Waits until the server answers, then writes how to reach it. */
  async writeKubeconfig(path: string): Promise<void> {
    const url = await this.listening()
    await writeKubeconfig(path, {
      url,
      certificateAuthority: this.#options.tls?.certificate,
    })
  }

  #createServer(): Server {
    const { tls, runtime } = this.#options
    const deps: RouteDeps = {
      ...this.#options,
      registry: this.registry,
      watches: this.watches,
      texts: eventTexts(),
      podLog: runtime?.log,
    }
    const answer: RequestListener = (request, response) => void serve(request, response, deps)
    if (tls === undefined) return createServer(answer)
    return createTlsServer({ cert: tls.certificate, key: tls.key }, answer)
  }

  #opened(server: Server): void {
    const address = server.address()
    if (typeof address === 'object' && address !== null) this.#port = address.port
    const { host, tls } = this.#options
    const url = `${tls === undefined ? 'http' : 'https'}://${hostPort(host, this.#port)}`
    this.#url = url
    for (const resolve of this.#waiting.splice(0)) resolve(url)
  }
}

async function listen(server: Server, host: string, port: number): Promise<void> {
  try {
    await once(server.listen({ host, port }), 'listening')
  } catch (cause) {
    throw new ConfigError(`listen on ${host} port ${port}: ${messageOf(cause)}`, { cause })
  }
}

async function close(server: Server): Promise<void> {
  if (!server.listening) return
  const closed = once(server, 'close')
  server.close()
  // Watches do not end by themselves, so their connections are closed.
  server.closeAllConnections()
  await closed
}
