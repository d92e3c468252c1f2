import { isDeepStrictEqual } from 'node:util'
import { Bell, pause, Slice } from '../async.js'
import type { Server } from 'node:http'
import type { HealthCheck } from '../state/health-check-ports.js'
import { familyOf, type IpFamily } from '../state/ip.js'
import { messageOf } from '../errors.js'
import type { ListenerDescriptors } from '../modes/mode.js'
import type { ClientConnections } from './client-connections.js'
import { close, json, listen, type HttpHandler, type HttpReply } from './http.js'

interface ServiceHealthOptions {
  /** Whether the proxy is healthy; the deletion taint does not count here. */
  readonly isHealthy: () => boolean
  /** A port could not be opened. Called once for each reason (H13). */
  readonly failed: (target: HealthCheck, message: string) => void
  /** A port that could not be opened is open now. */
  readonly recovered?: (target: HealthCheck) => void
  readonly clients?: ClientConnections
  /** More ports are not opened: the rest of this process needs descriptors, too. */
  readonly portsMax?: number
  readonly retryMs: number
  /** Resolves after `ms`, or at once at the signal or when the bell rings; never rejects. */
  readonly sleep: (ms: number, signal: AbortSignal, bell: Bell) => Promise<void>
}

interface Wanted {
  readonly id: string
  readonly address: string
  readonly family: IpFamily
  readonly port: number
}

/** A port takes a millisecond to open, so other work runs after so many. */
const portsAtOnce = 10

const noneLeft =
  'other ports have all file descriptors that this process may use to listen; raise its limit of open files (LimitNOFILE= of the unit, ulimit -n)'

/** The health-check node ports of Services (H11-H14). Exactly the ports given to `set` are open. */
export class ServiceHealth {
  readonly #options: ServiceHealthOptions
  #targets: ReadonlyMap<string, HealthCheck> = new Map()
  #addresses: readonly string[] = []
  /** By `id address port`. */
  readonly #open = new Map<string, Server>()
  /** By the same key: the last reason why a port could not be opened. */
  readonly #failures = new Map<string, string>()
  readonly #changed = new Bell()
  #portsMax: number
  #descriptors: ListenerDescriptors = { tryListen: () => true, stopListening: () => undefined }

  constructor(options: ServiceHealthOptions) {
    this.#options = options
    this.#portsMax = options.portsMax ?? Infinity
  }

  /**
   * Sets the targets by `namespace/name`, and the addresses to serve them on; `0.0.0.0` and `::`
   * mean all addresses. New numbers of endpoints are answered at once.
   */
  set(targets: ReadonlyMap<string, HealthCheck>, addresses: readonly string[]): void {
    const isSame = targets === this.#targets && isDeepStrictEqual(addresses, this.#addresses)
    this.#targets = targets
    this.#addresses = addresses
    // Each sync tells them, and most have changed nothing here.
    if (!isSame) this.#changed.ring()
  }

  /** From now on each port takes one of these. Most stay for the Services themselves. */
  share(descriptors: ListenerDescriptors): void {
    this.#descriptors = descriptors
    this.#portsMax /= 2
  }

  /** Opens and closes ports as wanted until the signal, then closes all (L18). */
  async run(signal: AbortSignal): Promise<void> {
    const { retryMs, sleep } = this.#options
    while (!signal.aborted) {
      this.#changed.silence()
      const isComplete = await this.#reconcile(signal)
      // Ports that could not be opened are tried again.
      if (isComplete) await pause(Infinity, signal, this.#changed)
      else await sleep(retryMs, signal, this.#changed)
    }
    await Promise.all([...this.#open.values()].map(close))
    this.#open.clear()
  }

  /**
   * Closes before it opens, because a port may move from one Service to another. There may be
   * thousands at a start, while the first rules are on their way.
   */
  async #reconcile(signal: AbortSignal): Promise<boolean> {
    const wanted = new Map<string, Wanted>()
    for (const [id, { port, localEndpoints }] of this.#targets) {
      for (const address of this.#addresses) {
        const family = familyOf(address)
        if (family === undefined || localEndpoints[family] === undefined) continue
        wanted.set(`${id} ${address} ${port}`, { id, address, family, port })
      }
    }
    for (const [key, server] of this.#open) {
      if (wanted.has(key)) continue
      this.#open.delete(key)
      await close(server)
      this.#descriptors.stopListening()
    }
    for (const key of this.#failures.keys()) if (!wanted.has(key)) this.#failures.delete(key)
    let isComplete = true
    let opened = 0
    const slice = new Slice()
    for (const [key, one] of wanted) {
      if (this.#open.has(key)) continue
      if (!(await this.#listen(key, one))) isComplete = false
      if (++opened % portsAtOnce === 0) await slice.rest()
      if (signal.aborted) break
    }
    return isComplete
  }

  async #listen(key: string, { id, address, family, port }: Wanted): Promise<boolean> {
    let isCounted = false
    try {
      isCounted = this.#open.size < this.#portsMax && this.#descriptors.tryListen()
      if (!isCounted) throw new Error(noneLeft)
      const server = await listen({
        host: address,
        port,
        handler: this.#answerFor(id, family),
        // The listener on 0.0.0.0 serves IPv4, so the one on `::` must not.
        ipv6Only: true,
        clients: this.#options.clients,
      })
      // The port stays open after an error of one client.
      server.on('error', () => undefined)
      this.#open.set(key, server)
      const target = this.#targets.get(id)
      if (this.#failures.delete(key) && target) this.#options.recovered?.(target)
      return true
    } catch (error) {
      if (isCounted) this.#descriptors.stopListening()
      const message = messageOf(error)
      const target = this.#targets.get(id)
      if (target && this.#failures.get(key) !== message) this.#options.failed(target, message)
      this.#failures.set(key, message)
      return false
    }
  }

  #answerFor(id: string, family: IpFamily): HttpHandler {
    return () => {
      // The port may be open for a moment after its Service is gone; the answer is 0 then.
      const count = this.#targets.get(id)?.localEndpoints[family] ?? 0
      return serviceAnswer(id, count, this.#options.isHealthy())
    }
  }
}

/** The answer of H12, for any path and method. */
export function serviceAnswer(id: string, localEndpoints: number, isHealthy: boolean): HttpReply {
  const [namespace = '', name = ''] = id.split('/')
  const reply = json(
    { service: { namespace, name }, localEndpoints, serviceProxyHealthy: isHealthy },
    isHealthy && localEndpoints > 0 ? 200 : 503,
  )
  return { ...reply, headers: { 'X-Load-Balancing-Endpoint-Weight': String(localEndpoints) } }
}
