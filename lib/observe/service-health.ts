import { aborted } from '../async.js'
import type { Server } from 'node:http'
import { familyOf, type IpFamily } from '../state/ip.js'
import { messageOf } from '../errors.js'
import { close, json, listen, type HttpHandler, type HttpReply } from './http.js'

/** One Service that wants to be asked whether this node has endpoints for it (S20, H11). */
export interface HealthCheckTarget {
  readonly namespace: string
  readonly name: string
  readonly port: number
  /** For each family the Service has; the port is open on addresses of these only. */
  readonly localEndpoints: Readonly<Partial<Record<IpFamily, number>>>
}

export interface ServiceHealthOptions {
  /** Whether the proxy itself keeps up; the deletion taint does not matter here. */
  readonly isHealthy: () => boolean
  /** A port could not be opened; told once for each reason (H13). */
  readonly failed: (target: HealthCheckTarget, message: string) => void
  readonly retryMs: number
  /** Resolves after `ms`, or at once when the signal comes; never rejects. */
  readonly sleep: (ms: number, signal: AbortSignal) => Promise<void>
}

interface Listener {
  readonly id: string
  readonly address: string
  readonly family: IpFamily
  readonly port: number
  readonly server: Server
}

/** The per-Service health-check node ports (H11-H14): open ports follow the desired set. */
export class ServiceHealth {
  readonly #options: ServiceHealthOptions
  #targets: ReadonlyMap<string, HealthCheckTarget> = new Map()
  #addresses: readonly string[] = []
  /** By `id address port`. */
  readonly #open = new Map<string, Listener>()
  /** What was told last about a listener that does not open. */
  readonly #complaints = new Map<string, string>()
  /** Aborted by `set`; a fresh one for every round. */
  #changed = new AbortController()

  constructor(options: ServiceHealthOptions) {
    this.#options = options
  }

  /**
   * What should be served from now on: targets by `namespace/name`, on these addresses, where
   * `0.0.0.0` and `::` stand for all. Numbers of endpoints are in force at once.
   */
  set(targets: ReadonlyMap<string, HealthCheckTarget>, addresses: readonly string[]): void {
    this.#targets = targets
    this.#addresses = addresses
    this.#changed.abort()
  }

  /** Opens and closes ports as wanted until the signal, then closes all (L18). */
  async run(signal: AbortSignal): Promise<void> {
    const { retryMs, sleep } = this.#options
    while (!signal.aborted) {
      this.#changed = new AbortController()
      const isComplete = await this.#reconcile()
      const either = AbortSignal.any([signal, this.#changed.signal])
      // What does not open is tried again; what is open needs nothing.
      if (isComplete) await aborted(either)
      else await sleep(retryMs, either)
    }
    await Promise.all([...this.#open.values()].map(({ server }) => close(server)))
    this.#open.clear()
  }

  /** Closes first: a port may go from one Service to another. */
  async #reconcile(): Promise<boolean> {
    const wanted = new Map<string, Omit<Listener, 'server'>>()
    for (const [id, { port, localEndpoints }] of this.#targets) {
      for (const address of this.#addresses) {
        const family = familyOf(address)
        if (family === undefined || localEndpoints[family] === undefined) continue
        wanted.set(`${id} ${address} ${port}`, { id, address, family, port })
      }
    }
    for (const [key, { server }] of this.#open) {
      if (wanted.has(key)) continue
      this.#open.delete(key)
      await close(server)
    }
    for (const key of this.#complaints.keys()) if (!wanted.has(key)) this.#complaints.delete(key)
    let isComplete = true
    for (const [key, listener] of wanted) {
      if (!this.#open.has(key) && !(await this.#listen(key, listener))) isComplete = false
    }
    return isComplete
  }

  async #listen(
    key: string,
    { id, address, family, port }: Omit<Listener, 'server'>,
  ): Promise<boolean> {
    try {
      const server = await listen({
        host: address,
        port,
        handler: this.#answerFor(id, family),
        // `::` must leave IPv4 to the listener on 0.0.0.0.
        ipv6Only: true,
      })
      this.#open.set(key, { id, address, family, port, server })
      this.#complaints.delete(key)
      return true
    } catch (error) {
      const message = messageOf(error)
      const target = this.#targets.get(id)
      if (target && this.#complaints.get(key) !== message) this.#options.failed(target, message)
      this.#complaints.set(key, message)
      return false
    }
  }

  #answerFor(id: string, family: IpFamily): HttpHandler {
    return () => {
      // 0 for the moment in which a port is still open although its Service has left.
      const count = this.#targets.get(id)?.localEndpoints[family] ?? 0
      return serviceAnswer(id, count, this.#options.isHealthy())
    }
  }
}

/** H12, for any path and method. */
export function serviceAnswer(id: string, localEndpoints: number, isHealthy: boolean): HttpReply {
  const [namespace = '', name = ''] = id.split('/')
  const reply = json(
    { service: { namespace, name }, localEndpoints, serviceProxyHealthy: isHealthy },
    isHealthy && localEndpoints > 0 ? 200 : 503,
  )
  return { ...reply, headers: { 'X-Load-Balancing-Endpoint-Weight': String(localEndpoints) } }
}
