import type { DataPathDeps, EndpointChanges, ListenerSpec } from './data-path.js'
import { descriptorsPerConnection } from './descriptors.js'
import { Listener, type Carried } from './listener.js'

interface Connection extends Carried {
  /** `ok`, or why it ended. */
  readonly end: string
  reset(): void
}

/** One listening TCP socket and the connections that came through it. */
export abstract class TcpListenerBase<C extends Connection> extends Listener {
  protected readonly connections = new Set<C>()
  #serving: ReadonlySet<string>
  /** By endpoint that left: when its connections are reset. */
  readonly #timers = new Map<string, NodeJS.Timeout>()

  constructor(spec: ListenerSpec, deps: DataPathDeps) {
    super(spec, deps)
    this.#serving = new Set(spec.servingKeys)
  }

  protected abstract stopListening(): void

  override update(changes: EndpointChanges): void {
    super.update(changes)
    this.#resetLater(changes)
  }

  /**
   * Resets connections some time after their endpoint left, where a Service asks for it. An endpoint
   * has left when it is neither used nor serving, so a pod that terminates may finish first.
   */
  #resetLater({ removed, servingKeys, resetAfterMs }: EndpointChanges): void {
    const before = this.#serving
    this.#serving = new Set(servingKeys)
    for (const [endpoint, timer] of this.#timers) {
      if (resetAfterMs !== undefined && !this.#isHere(endpoint)) continue
      clearTimeout(timer)
      this.#timers.delete(endpoint)
    }
    if (resetAfterMs === undefined) return
    for (const endpoint of new Set([...removed, ...before])) {
      if (this.#isHere(endpoint) || this.#timers.has(endpoint)) continue
      const timer = setTimeout(() => this.#reset(endpoint), resetAfterMs).unref()
      this.#timers.set(endpoint, timer)
    }
  }

  #isHere(endpoint: string): boolean {
    return this.balancer.has(endpoint) || this.#serving.has(endpoint)
  }

  #reset(endpoint: string): void {
    this.#timers.delete(endpoint)
    for (const connection of this.connections) {
      if (connection.target?.key === endpoint) connection.reset()
    }
  }

  stop(): void {
    if (this.isStopped) return
    this.isStopped = true
    this.stopListening()
    if (this.connections.size === 0) this.becomeIdle()
  }

  handOver(): void {
    this.stop()
  }

  cut(): void {
    for (const connection of this.connections) connection.reset()
  }

  protected tryTakeDescriptors(): boolean {
    const held = this.connections.size * descriptorsPerConnection
    return this.deps.descriptors.tryTakeFor(held, descriptorsPerConnection)
  }

  protected began(connection: C): void {
    this.connections.add(connection)
    this.traffic.active++
  }

  /** Call it once, when both sockets are closed. */
  ended(connection: C): void {
    this.connections.delete(connection)
    if (connection.target) this.balancer.ended(connection.target)
    this.traffic.active--
    this.deps.descriptors.release(descriptorsPerConnection)
    this.log(connection, connection.end)
    if (this.isStopped && this.connections.size === 0) this.becomeIdle()
  }
}
